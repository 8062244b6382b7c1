"""Every verdict of the committed results in one Markdown table.

python benchmarks/verdicts.py results > results/README.md
"""

import json
import sys
from pathlib import Path

HEAD = """# Results

The verdicts of `unbraid reproduce` on the papers' claims; `python benchmarks/verdicts.py results` writes this page. The
folder of each experiment has the table, the figure, the command, the commit, the versions and the minutes. Minutes are
wall time, and experiments shared one GPU: three at a time at commit fe5b612, and five to eight at 2d28a2a and 0e8245e.
At 91d0d40 and d740773, with up to twelve processes at a time, minutes are sums over an experiment's processes, without
the 8 minutes that each had trained before an interruption. At c6b2ec0 and f861b31 they are such sums of up to ten
processes, some of which were paused for others.

Intervals are widened where there are few seeds (see [reproducing](../docs/reproducing.md)). Where the scores of older
runs were stored, `benchmarks/judge_again.py` has computed the intervals again. Those of chen2018/figS1 and figS2,
esmaeili2018/fig6, fig7 and table2, split2020/fig2, fig3, fig4 and fig11, and msvae2020/fig21 are older: they are plain
percentiles, which lie too close together. All of these claims are inconclusive anyway, except three of
esmaeili2018/fig6. `cond/Z-noise` in msvae2020/fig5 and fig38 belongs to stages whose z has the coordinates of their
networks, not those that fit the prior best; this makes [a difference](frame/README.md). MS-VAE is nearer to the data
than a beta-TCVAE of its size at beta 1 (table1) only if its second stage trains as long as the first: with 6,000 steps
(commit 2d28a2a) the claim does not hold.

See also [speed](benchmarks/README.md), [agreement between scores](disagreement/README.md), the
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
