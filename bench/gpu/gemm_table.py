"""Step gemm_support: asks cuBLASLt what it has, writes the answers as a table like gpu/gemm_support.txt, which the simulation
enforces, and says where the two differ. Wrong products fail the step; other answers than the stored ones do not."""

import json
import subprocess
import sys

from step import figures
from target import Target

TABLE = "gpu/gemm_support.txt"


def accepted_alignments(products):
    """(operands, result, ops, epilogue) -> the smallest alignment that is accepted, as are all larger ones, whatever is added."""
    answers = {}
    for product in products:
        kind = tuple(product[key] for key in ("operands", "result", "ops", "epilogue"))
        accepted = answers.setdefault(kind, {})
        accepted[product["alignment"]] = accepted.get(product["alignment"], True) and product["accepted"]
    table = {}
    for kind, accepted in answers.items():
        for alignment in sorted(accepted, reverse=True):
            if not accepted[alignment]:
                break
            table[kind] = alignment
    return table


def read_table(path):
    rows = (line.split("#")[0].split() for line in path.read_text().splitlines())
    return {tuple(row[:4]): int(row[4]) for row in rows if row}


def write_table(path, table, stored, head):
    """In the order of the stored one, then what it has not."""
    kinds = [kind for kind in stored if kind in table] + [kind for kind in table if kind not in stored]
    path.write_text("\n".join([*head, *(f"{a:11} {b:7} {c:4} {d:10} {table[a, b, c, d]}" for a, b, c, d in kinds)]) + "\n")


def differences(stored, found):
    for kind in {**stored, **found}:
        if stored.get(kind) != found.get(kind):
            said = {alignment: f"aligned to {alignment}" for alignment in (2, 4, 8, 16)}
            yield f"{' '.join(kind)}: stored {said.get(stored.get(kind), 'refused')}, found {said.get(found.get(kind), 'refused')}"


def main():
    target = Target.of_step()
    done = subprocess.run([sys.argv[1]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    answer = figures(done.stdout.splitlines())
    if answer is None:
        sys.exit(f"{done.stdout}exit status {done.returncode}")
    found, stored = accepted_alignments(answer["products"]), read_table(target.root / TABLE)
    head = [line for line in (target.root / TABLE).read_text().splitlines() if line.startswith("#")]
    write_table(target.out / "gemm_support.txt", found, stored, head)
    different = list(differences(stored, found))
    print(json.dumps({**answer, "differences": different, "table": str(target.out / "gemm_support.txt")}))
    print("\n".join(different) or f"as {TABLE} says")
    if done.returncode != 0:
        sys.exit(done.stdout[-2000:])


main()
