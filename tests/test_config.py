"""Typed configuration: YAML, extends, key=value, and messages for every way to get it wrong."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, field_validator, model_validator

from covid_cmsf.config import (
    Config,
    Kind,
    config_differences,
    config_name,
    find_config,
    load_config,
    parse_override,
    read_yaml,
)
from covid_cmsf.yaml_files import read_yaml_file


class Optimizer(Config):
    lr: float = 0.1
    name: str = "adam"


class Train(Config):
    epochs: int = 10
    optimizer: Optimizer = Optimizer()
    second: Optimizer | None = None


def test_a_file_extends_others_and_overrides_win(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("epochs: 3\noptimizer: {lr: 0.5, name: sgd}\n")
    (tmp_path / "run.yaml").write_text("extends: base.yaml\noptimizer: {lr: 0.25}\n")
    config = load_config(Train, tmp_path / "run.yaml", ["epochs=7"])
    assert config == Train(epochs=7, optimizer=Optimizer(lr=0.25, name="sgd"))


def test_scientific_notation_is_a_number_in_files_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("optimizer: {lr: 1e-3}\n")
    assert load_config(Train, tmp_path / "run.yaml").optimizer.lr == 1e-3
    assert load_config(Train, None, ["++optimizer.lr=2e-4"]).optimizer.lr == 2e-4


def test_an_unknown_key_is_an_error_with_the_nearest_match(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("optimizer: {nmae: 1}\n")
    with pytest.raises(ValueError, match=r"run.yaml.*unknown key 'optimizer.nmae'; did you mean 'optimizer.name'"):
        load_config(Train, tmp_path / "run.yaml")
    with pytest.raises(ValueError, match="did you mean 'second.name'"):
        load_config(Train, None, ["second.nmae=x"])
    with pytest.raises(ValueError, match="known here: epochs, optimizer, second"):
        load_config(Train, None, ["zzz=1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: many", "epochs = 'many'"),
        ("epochs: 2.5", "epochs = 2.5"),
        ("optimizer: {lr: .nan}", "optimizer.lr"),
        ("- a\n- b", "must contain a mapping"),
        ("epochs: [1", "not valid YAML"),
        ("extends: 3", "extends must be a path"),
        ("epochs: 1\nepochs: 2", "'epochs' is repeated"),
        ("epochs: !!python/object/apply:os.system [echo]", "not valid YAML"),
        ("epochs: " + "[" * 50 + "]" * 50, "nested deeper"),
        ("a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
         "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e]", "more than"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_a_reason(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        load_config(Train, tmp_path / "run.yaml")


def test_missing_files_and_circles_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.yaml"):
        load_config(Train, tmp_path / "nowhere.yaml")
    (tmp_path / "a.yaml").write_text("extends: b.yaml")
    (tmp_path / "b.yaml").write_text("extends: [a.yaml]")
    with pytest.raises(ValueError, match="extends itself"):
        load_config(Train, tmp_path / "a.yaml")


@pytest.mark.parametrize("text", ["epochs", "=3", "a..b=1", "lr=[1", "guides.0.weights=", "lr= "])
def test_bad_overrides_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="override"):
        parse_override(text)


# Faults, low: sixty thousand keys, doubling `extends`, merge keys, YAML bombs.

BOMB = "a: &a [" + "1," * 1000 + "]\nb: &b [" + "*a," * 1000 + "]\nc: [" + "*b," * 1000 + "]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "has more than 20,000 keys and values"),
        ("".join(f"key{number}: 1\n" for number in range(30_000)), "has more than 20,000 keys and values"),
        ("a: " + "x" * 600_000, "is larger than 500,000 bytes"),
        ("a: &a [*a]", "has an alias that contains itself"),
        ("".join(f"a{n}: &a{n} [{f'*a{n - 1}' if n else 1}]\n" for n in range(30)), "is nested deeper than 20 levels"),
    ],
    ids=["bomb", "keys", "bytes", "circle", "depth"],
)
def test_files_that_would_take_long_are_refused_while_they_are_read(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_yaml_file(path)
    assert str(caught.value).startswith(f"{path} {message}") and "\n" not in str(caught.value)


def test_files_that_extend_one_another_twice_over_are_counted(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.yaml").write_text(f"extends: [{number + 1}.yaml, {number + 1}.yaml]\n")
    (tmp_path / "40.yaml").write_text("epochs: 3\n")
    with pytest.raises(ValueError, match=r"0\.yaml extends more than 100 files"):
        read_yaml(tmp_path / "0.yaml")
    assert read_yaml(tmp_path / "36.yaml") == {"epochs": 3}


def test_merge_keys_and_aliases_work(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("optimizer: &one {lr: 0.5, name: sgd}\nsecond: {<<: *one, lr: 0.25}\n")
    config = load_config(Train, tmp_path / "run.yaml")
    assert config.optimizer == Optimizer(lr=0.5, name="sgd") and config.second == Optimizer(lr=0.25, name="sgd")


def test_faults_of_yaml_are_one_line_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("epochs: 1\noptimizer: {lr: 1\n")
    with pytest.raises(ValueError, match=r"run.yaml is not valid YAML: .* \(line 3\)$") as caught:
        read_yaml(tmp_path / "run.yaml")
    assert "\n" not in str(caught.value)


def test_the_first_element_of_a_list_need_not_be_there() -> None:
    drawing = load_config(Drawing, None, ["form.shape=square", "several.0.shape=circle", "several.0.radius=4"])
    assert [circle.radius for circle in drawing.several] == [4]


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Train().epochs = 3  # type: ignore[misc]


class Head(Config):
    width: int = 8


class Square(Config):
    shape: Literal["square"]
    side: float = 1.0
    head: Head = Head()


class Circle(Config):
    shape: Literal["circle"]
    radius: Annotated[int, Field(ge=1)] | Literal["all"] = 1

    @field_validator("radius")
    @classmethod
    def _not_seven(cls, value: int | str) -> int | str:
        if value == 7:
            raise ValueError("seven is too much")
        return value


class Drawing(Config):
    form: Annotated[Square | Circle, Field(discriminator="shape")]
    named: dict[str, Head] = Field(default_factory=dict)
    several: tuple[Circle, ...] = ()

    @model_validator(mode="after")
    def _fit(self) -> "Drawing":
        if len(self.several) > 2:
            raise ValueError(f"{len(self.several)} circles are too many")
        return self


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["form.shape=circle", "form.radios=2"], "unknown key 'form.radios'; did you mean 'form.radius'?"),
        (["form.shape=square", "form.radius=2"], "unknown key 'form.radius'; known here: shape, side, head"),
        (["form.shape=square", "form.head.widht=2"], "unknown key 'form.head.widht'; did you mean 'form.head.width'?"),
        (["form.shape=circel"], "form.shape = 'circel': did you mean 'circle'?"),
        (["form.shape=x"], "form.shape = 'x': known here: square, circle"),
        (["form.radius=3"], "'form.shape' is missing"),
        (["form.shape=circle", "form.radius=many"], "form.radius = 'many': input should be 'all'"),
        (["form.shape=circle", "form.radius=7"], "form.radius = 7: seven is too much"),
        (["form.shape=square", "named={a: {width: x}}"], "named.a.width = 'x': input should be a valid integer"),
        (["form.shape=square", "several=[{shape: circle, radius: 0}]"], "several.0.radius = 0"),
    ],
)
def test_faults_inside_unions_are_told_in_the_users_terms(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        load_config(Drawing, None, overrides)
    assert message in str(caught.value)


def test_values_that_do_not_fit_together_are_not_all_printed() -> None:
    circle = "{shape: circle}"
    with pytest.raises(ValueError) as caught:
        load_config(Drawing, None, ["form.shape=square", f"several=[{circle}, {circle}, {circle}]"])
    assert str(caught.value) == "configuration (the command line): 3 circles are too many"


def test_a_section_may_extend_a_file_and_null_removes_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "sgd.yaml").write_text("lr: 0.5\nname: sgd\n")
    (tmp_path / "run.yaml").write_text("epochs: 3\noptimizer: {extends: sgd.yaml, lr: 0.25}\n")
    assert read_yaml(tmp_path / "run.yaml") == {"epochs": 3, "optimizer": {"lr": 0.25, "name": "sgd"}}
    (tmp_path / "own.yaml").write_text("extends: run.yaml\nepochs: null\noptimizer: {name: null}\n")
    assert load_config(Train, tmp_path / "own.yaml") == Train(optimizer=Optimizer(lr=0.25))
    (tmp_path / "run.yaml").write_text("optimizer: {extends: own.yaml}\n")
    with pytest.raises(ValueError, match="extends itself"):
        read_yaml(tmp_path / "own.yaml")


def test_null_needs_something_to_remove_or_a_key_that_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("epochs: 3\nsecond: {lr: 1}\n")
    config = load_config(Train, tmp_path / "run.yaml", ["epochs=null", "second=null"])
    assert config == Train() and config.epochs == 10
    with pytest.raises(ValueError, match="epochs = None: input should be a valid integer"):
        load_config(Train, None, ["epochs=null"])
    with pytest.raises(ValueError, match="unknown key 'epoch'"):
        load_config(Train, None, ["epoch=null"])


def test_a_mapping_on_the_command_line_replaces_the_one_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("optimizer: {lr: 0.5, name: sgd}\n")
    assert load_config(Train, tmp_path / "run.yaml", ["optimizer={}"]).optimizer == Optimizer()
    assert load_config(Train, tmp_path / "run.yaml", ["optimizer={lr: 2}"]).optimizer == Optimizer(lr=2)
    assert load_config(Train, tmp_path / "run.yaml", ["optimizer.lr=2"]).optimizer == Optimizer(lr=2, name="sgd")


def test_elements_of_lists_are_set_by_index() -> None:
    several = "several=[{shape: circle}, {shape: circle, radius: 3}]"
    changed = load_config(Drawing, None, ["form.shape=square", several, "several.1.radius=5"])
    assert [circle.radius for circle in changed.several] == [1, 5]
    removed = load_config(Drawing, None, ["form.shape=square", several, "several.0=null"])
    assert [circle.radius for circle in removed.several] == [3]
    for override in ("several.2.radius=5", "several.x.radius=5"):
        with pytest.raises(ValueError, match="is no index of this list; choose from 0 to 1"):
            load_config(Drawing, None, ["form.shape=square", several, override])


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("lr=1", "unknown key 'lr'; did you mean 'optimizer.lr' or 'second.lr'?"),
        ("nmae=x", "unknown key 'nmae'; did you mean 'optimizer.name'?"),
        ("optimizer.epochs=1", "unknown key 'optimizer.epochs'; did you mean 'epochs'?"),
    ],
)
def test_an_unknown_key_is_looked_for_in_all_sections(override: str, suggestion: str) -> None:
    with pytest.raises(ValueError) as caught:
        load_config(Train, None, [override])
    assert suggestion in str(caught.value)


def test_configurations_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    infonce = find_config("runs", "infonce")
    assert infonce.name == "infonce.yaml" and config_name("runs", infonce) == "infonce"
    assert config_name("plans", find_config("plans", "paper/video/cotraining")) == "paper/video/cotraining"
    (tmp_path / "own.yaml").write_text(f"extends: {infonce}\n")
    assert find_config("runs", tmp_path / "own.yaml") == find_config("runs", "own.yaml", relative_to=tmp_path)
    assert config_name("runs", tmp_path / "own.yaml") == "own"


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("runs", "infonc", "no configuration 'infonc': neither a file nor a name; did you mean 'infonce'"),
        ("plans", "ucf101-mini", "did you mean 'real/ucf101-mini'"),
        ("plans", "zzz", "choose from demo, demo-audio, demo-siblings, paper/images/noisy"),
        ("runs", "demo", "'demo' is a plan: use covid-cmsf cotrain demo"),
        ("plans", "infonce", "'infonce' is a training run: use covid-cmsf train infonce"),
        ("runs", "base", "no configuration 'base'"),
        ("runs", "gone/run.yaml", "no configuration file gone/run.yaml"),
    ],
)
def test_a_name_that_is_not_there_is_one_line(kind: Kind, name: str, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        find_config(kind, name)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_plan_given_as_a_run_and_the_reverse_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("rounds: 1\n")
    (tmp_path / "run.yaml").write_text("method: {name: xent}\n")
    with pytest.raises(ValueError, match="plan.yaml is a plan: use covid-cmsf cotrain"):
        find_config("runs", tmp_path / "plan.yaml")
    with pytest.raises(ValueError, match="run.yaml is a training run: use covid-cmsf train"):
        find_config("plans", tmp_path / "run.yaml")


def test_differences_have_dotted_keys_and_both_values() -> None:
    old = {"a": 1, "b": {"c": 2, "d": [1, 2]}, "gone": None, "e": {"f": 1}}
    new = {"a": 1, "b": {"c": 3, "d": [1, 2, 3]}, "new": "x", "e": None}
    assert config_differences(old, new) == {
        "b.c": (2, 3),
        "b.d": ([1, 2], [1, 2, 3]),
        "e": ({"f": 1}, None),
        "new": (None, "x"),
    }
