"""Every column of the trial store: name, type, unit, meaning, and the attribute of a `Trial` that it holds.

Fixed columns are there in every parquet part. A family holds a mapping of a trial, one column an entry
(``schedule.tile_m``), and its columns appear with the first trial that has the entry.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Type of a column. A column never changes its type, also where all its values are missing."""

    STRING = "string"
    INT = "int64"
    FLOAT = "double"
    BOOL = "bool"
    TIME = "timestamp"
    STRINGS = "list<string>"
    FLOATS = "list<double>"


@dataclass(frozen=True, slots=True)
class Column:
    """One fixed column.

    Attributes:
        name: In the data frame.
        kind: Type.
        path: Attribute of `results.trial.Trial` or of one of its parts; empty where the store fills it.
        meaning: For a person.
        unit: Of the values; empty where they have none.
    """

    name: str
    kind: Kind
    path: str
    meaning: str
    unit: str = ""

    @property
    def group(self) -> str:
        """The part of the trial that owns the attribute: ``key``, ``verdict``, ...; empty for the trial."""
        return self.path.rpartition(".")[0]

    @property
    def attribute(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Family:
    """Columns ``name.ENTRY`` for the entries of one mapping.

    Attributes:
        name: First part of the columns' names.
        kinds: Types that an entry can have.
        path: The mapping, as in `Column`.
        meaning: For a person.
        unit: Of the values.
    """

    name: str
    kinds: tuple[Kind, ...]
    path: str
    meaning: str
    unit: str = ""

    @property
    def group(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def attribute(self) -> str:
        return self.path.rpartition(".")[2]


S, I, F, T = Kind.STRING, Kind.INT, Kind.FLOAT, Kind.TIME  # noqa: E741

COLUMNS: tuple[Column, ...] = (
    Column("study", S, "study", "name of the study"),
    Column("number", I, "number", "Optuna's trial number within the study; with `study` the key of a row"),
    Column("kernel", S, "key.kernel", "kernel id"),
    Column("problem", S, "key.problem", "sizes joined by x, as in `--shape`"),
    Column("arch", S, "key.arch", "architecture that was emitted for, as `sm_89`"),
    Column("device", S, "key.device", "what judged and timed it: `sim:rtx4090`, `cuda:NVIDIA H200`"),
    Column("policy", S, "key.policy", "timing policy that the study asks for"),
    Column("objective", S, "key.objective", "what is minimised: `time` or `energy`"),
    Column("semantic_hash", S, "key.semantic_hash", "blake3 of what the kernel computes, hex"),
    Column("space_hash", S, "key.space_hash", "blake3 of the search space, hex"),
    Column("data_hash", S, "key.data_hash", "blake3 of the problem's real data, hex; empty for made-up ones"),
    Column(
        "outcome", S, "outcome", "what became of it: " + "ok, duplicate, or the failure; started: running"
    ),
    Column("message", S, "message", "for a failure: the rule, the value, the way out"),
    Column("duplicate_of", I, "duplicate_of", "number of the trial whose result this one was told"),
    Column("source_hash", S, "source_hash", "blake3 of the PTX text and the plan, hex"),
    Column("code_hash", S, "code_hash", "blake3 of the code that ptxas made, hex"),
    Column("registers", I, "resources.registers", "registers of a thread", "registers"),
    Column(
        "shared_bytes", I, "resources.shared_bytes", "shared memory of a block, static and dynamic", "bytes"
    ),
    Column("spill_bytes", I, "resources.spill_bytes", "spill stores and loads of a thread", "bytes"),
    Column("threads", I, "resources.threads", "threads of a block", "threads"),
    Column("verdict.mismatches", I, "verdict.mismatches", "wrong elements over all problems", "elements"),
    Column("verdict.problems", Kind.STRINGS, "verdict.problems", "the problems it was run on"),
    Column("verdict.first_bad", S, "verdict.first_bad", "the first wrong elements, for a person"),
    Column("verdict.fault", S, "verdict.fault", "kind of the first fault, missing for none"),
    Column("verdict.fault_message", S, "verdict.fault_message", "where the fault is, for a person"),
    Column("verdict.where", S, "verdict.where", "what ran it: `simulator` or `device`"),
    Column("time_us", F, "measurement.time_us", "time of the whole plan, median over repeats", "us"),
    Column("source", S, "measurement.source", "how `time_us` was obtained: `cuda_events`, `replay`, `model`"),
    Column("times_us", Kind.FLOATS, "measurement.times_us", "every raw time behind it", "us"),
    Column("measurement.policy", S, "measurement.policy", "timing policy that was used"),
    Column("measurement.bound_us", F, "measurement.bound_us", "physical bound of this plan", "us"),
    Column("clock_mhz", F, "measurement.clock_mhz", "SM clock while timing, or assumed", "MHz"),
    Column("memory_clock_mhz", F, "measurement.memory_clock_mhz", "memory clock while timing", "MHz"),
    Column("temperature_c", F, "measurement.temperature_c", "temperature of the GPU", "degrees Celsius"),
    Column("driver", S, "measurement.driver", "version of the GPU's driver"),
    Column("energy_j", F, "measurement.energy_j", "energy of one call", "J"),
    Column("bound_us", F, "bound_us", "physical bound of the problem on this device", "us"),
    Column("sampler", S, "sampler", "what proposed the schedule"),
    Column("seed", I, "seed", "of the study's random numbers, missing for none"),
    Column("host", S, "host", "name of the machine that ran the tuner"),
    Column("process", I, "process", "id of the process that ran the trial"),
    Column("started_at", T, "started_at", "when the trial began", "UTC, to the microsecond"),
    Column("finished_at", T, "finished_at", "when it ended", "UTC, to the microsecond"),
    Column("recorded_at", T, "", "when this row was written; of two with one key the later counts", "UTC"),
)

FAMILIES: tuple[Family, ...] = (
    Family("size", (I,), "sizes", "sizes of the problem by name"),
    Family("weights", (S,), "weights", "of real data: name of the file, of the tensor, blake3 of its bytes"),
    Family("schedule", (I, S, Kind.BOOL), "schedule", "every parameter of the schedule"),
    Family("breakdown_us", (F,), "measurement.breakdown_us", "parts of a prediction; need not add up", "us"),
    Family("other_us", (F,), "measurement.other_us", "other times of the same plan, as `warm`", "us"),
    Family("details", (F, S), "measurement.details", "what else the device noted"),
    Family("seconds", (F,), "seconds", "wall time of each part of the candidate's way", "s"),
    Family("version", (S,), "versions", "of this package, ptxas, optuna, numpy, python"),
)

FIXED: dict[str, Column] = {column.name: column for column in COLUMNS}
FAMILY_NAMED: dict[str, Family] = {family.name: family for family in FAMILIES}

# The attribute whose column tells whether an optional part of a trial is there at all.
MARKS = {"resources": "registers", "verdict": "verdict.mismatches", "measurement": "time_us"}


def describe() -> str:
    """The page `docs/columns.md`."""
    lines = [
        "# Columns of the trial store",
        "",
        '`pandas.read_parquet("tuning/trials")` gives one row a trial that has ended, failures included.',
        "What a trial did not come far enough to have is missing (`<NA>`), never 0. Columns of whole numbers",
        "are pandas' `Int64`, so a missing value makes no floats of them. `results.load_trials()` also",
        "has the trials of the last seconds and those that are running (`started`).",
        "`python -m results.schema` writes this page.",
        "",
        "| column | type | unit | meaning |",
        "|---|---|---|---|",
        *(f"| `{c.name}` | {c.kind} | {c.unit} | {c.meaning} |" for c in COLUMNS),
        "",
        "One column an entry, named `FAMILY.ENTRY`, present as soon as one trial has it:",
        "",
        "| family | type | unit | meaning |",
        "|---|---|---|---|",
        *(f"| `{f.name}.*` | {' or '.join(f.kinds)} | {f.unit} | {f.meaning} |" for f in FAMILIES),
        "",
        "Where two kernels use one name for values of different types, the type that was stored first has",
        "the plain column and another type has its own, with the type as suffix: `schedule.decode` (string)",
        "and `schedule.decode:int64`. No column ever changes its type.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(describe(), end="")
