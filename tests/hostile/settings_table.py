"""Hostile values of settings, each with the commands that take them."""

NINES = "9" * 400
DIGITS = "1" * 5000
DEEP = "[" * 2000 + "]" * 2000
ESCAPE = "\x1b[31mred\x1b[0m\x07"
BIDI = "\u202eevil\u2066"
SURROGATE = "caf\udce9"
LONG = "x" * 5000

NUMBERS = ["", "-1", "0", "nan", "inf", "-inf", "1e400", "-1e400", NINES, DIGITS, "0x10", "1__0", "٣", "1e", "--1"]
NUMBERS += ["true", "none", "[]", "[1,2]", "[[1]]", DEEP, "[1,", "]", ",", "1,2", "0:3", ESCAPE, BIDI, SURROGATE, LONG]
NUMBERS += [
    "a b",
    "\n",
    "'",
    '"',
    "${HOME}",
    "$(id)",
    "../..",
    "{}",
    "!!python/object:os.system",
    "&a [*a]",
    "1+1",
    "½",
]

WHOLE = ["steps", "batch", "seed", "z", "encoder.hidden", "decoder.hidden", "encoder.depth", "data.size"]
REAL = ["lr", "clip", "beta", "split"]
NAMES = ["data", "network", "encoder", "decoder", "likelihood", "prior", "latents", "groups", "decay", "precision"]

UNKNOWN = ["fresh=true", "rows=5", "report=false", "device=cpu", "name=x", "root=x", "resume=true", "recipe=vae"]
UNKNOWN += ["cadence=1", "track=wandb", "=1", "==", "a", "", "beta", "beta==1", "__class__=1", "self=1", "data.=1"]
UNKNOWN += [".=1", "encoder.=1", "encoder..=1", "encoder.__init__=1", "data.folder=/etc", "data.__class__=x"]
UNKNOWN += [f"{LONG}=1", f"{ESCAPE}=1", f"{BIDI}=1", f"{SURROGATE}=1", "beta\n\n=1 ]", "beta=1 beta=2", "BETA=1"]
UNKNOWN += ["steps.x=1", "latents.x=1", "prior.x=1", "likelihood.x=1", "parent=x", "modules=x", "overrides=1"]
UNKNOWN += ["metrics=mig", "on=local", "members=1", "dataset=x", "format=2", "config=x", "class=1", "if=1", "world=2"]
UNKNOWN += ["choice=x", "settings=1", "many=true"]
