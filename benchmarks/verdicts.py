"""Every verdict of the committed results in one Markdown table.

python benchmarks/verdicts.py results > results/README.md
"""

import json
import sys
from pathlib import Path

HEAD = """# Results

What the experiments of `unbraid reproduce` say about the papers' claims; `python benchmarks/verdicts.py results` makes
this page. Each experiment's folder has the table, the figure, the command, the commit, the versions and the minutes
(wall time; experiments shared one GPU, three at a time those of commit fe5b612, five to eight at a time those of
2d28a2a and 0e8245e; those of 91d0d40 and d740773, with up to twelve processes at a time, are sums over an experiment's
processes, less the 8 minutes that each had trained before all were interrupted once; those of c6b2ec0 and f861b31 are
such sums, too, of up to ten processes, some of which were paused for others).

Intervals are as wide as few seeds ask for (see [reproducing](../docs/reproducing.md)); where the scores of older runs
were at hand, `benchmarks/judge_again.py` has computed them anew. Those of chen2018/figS1 and figS2, esmaeili2018/fig6,
fig7 and table2, split2020/fig2, fig3, fig4 and fig11, and msvae2020/fig21 are older: plain percentiles, which are too
close together. All of these claims are inconclusive anyway, but three of esmaeili2018/fig6. `cond/Z-noise` in
msvae2020/fig5 and fig38 is that of stages whose z has the coordinates of their networks, and not yet those that its
prior fits best, which make [the difference](frame/README.md). That MS-VAE is nearer to the data than a beta-TCVAE of
its size at beta 1 (table1) takes a second stage as long as the first:
with 6,000 steps (commit 2d28a2a) it does not hold.

Besides: [speed](benchmarks/README.md), [agreement between scores](disagreement/README.md), the
[study](chen2018/README.md) behind figures 2 and 4 of chen2018, the [reference run](reference/README.md), the
[effect of bf16](precision/README.md), the [coordinates of z](frame/README.md), the [demo](demo/README.md).

| experiment | scale | claim | verdict | evidence |
| --- | --- | --- | --- | --- |"""


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    print(HEAD)
    for path in sorted(folder.glob("*/*/verdicts.json")):
        stored = json.loads(path.read_text("utf-8"))
        name = path.parent.relative_to(folder).as_posix()
        for verdict in stored["verdicts"]:
            told = (stored["scale"], verdict["claim"], verdict["verdict"], verdict["why"])
            cells = " | ".join(cell.replace("|", "\\|") for cell in told)
            print(f"| [{name}]({name}/README.md) | {cells} |")


if __name__ == "__main__":
    main()
