"""Reading and writing the released format."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.config import BadInput
from headcount.tasks.babi import SLUGS, Babi, Line, Story, file_name, parse, read, render, stories, write

DATA = Path(__file__).parent / "data"
GOOD = "1 John went to the office.\n2 Mary left the milk.\n3 Where is John? \toffice\t1\n"


def test_data_are_the_released_files() -> None:
    sums = dict(reversed(line.split()) for line in (DATA / "SHA256SUMS").read_text().splitlines())
    names = {file_name(story_type) for story_type in SLUGS} | {"LICENSE.txt", "README.txt"}
    assert sums.keys() == names
    for name, expected in sums.items():
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == expected


@pytest.mark.parametrize("story_type", SLUGS)
def test_round_trip_is_byte_identical(story_type: int, tmp_path: Path) -> None:
    source = DATA / file_name(story_type)
    told = read(source)
    assert {story.story_type for story in told} == {story_type}
    write(tmp_path / "copy.txt", told)
    assert (tmp_path / "copy.txt").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("story_type", SLUGS)
def test_generated_round_trip_and_blanks_as_released(story_type: int) -> None:
    told = stories(Babi(story_type=story_type), 20, seed=3)
    assert parse(render(told), story_type) == told
    blanks = {question.blank for story in told for question in story.questions}
    released = {question.blank for story in read(DATA / file_name(story_type)) for question in story.questions}
    assert blanks == released


@pytest.mark.parametrize("story_type", [1, 8, 19])
def test_carriage_returns_blanks_and_empty_last_lines_change_nothing(story_type: int, tmp_path: Path) -> None:
    content = (DATA / file_name(story_type)).read_bytes()
    copy = tmp_path / file_name(story_type)
    copy.write_bytes(content.replace(b"\n", b"\r\n"))
    assert render(read(copy)).encode() == content
    copy.write_bytes(content.replace(b".\n", b". \t \n").rstrip(b"\n") + b"\n\n \n")
    assert render(read(copy)).encode() == content
    copy.write_bytes(content.rstrip(b"\n"))
    assert render(read(copy)).encode() == content


def test_story_without_a_question_survives() -> None:
    told = parse("1 Lily is a swan.\n2 Lily is gray.\n" + GOOD, 16)
    assert [len(story.questions) for story in told] == [0, 1]
    assert render(told).endswith(GOOD)


@pytest.mark.parametrize(
    ("content", "line", "expected"),
    [
        ("", 1, "line number 1"),
        ("2 John went to the office.\n", 1, "line number 1"),
        ("one John went to the office.\n", 1, "line number 1"),
        ("1 John went to the office.\n3 Mary left the milk.\n", 2, "line number 2 or 1"),
        ("1 John went to the office.\n\n2 Mary left the milk.\n", 2, "line number 2 or 1"),
        ("1\n", 1, "a sentence"),
        ("1 \n2 Mary left the milk.\n", 1, "a sentence"),
        (GOOD + "4 Where is Mary?\n", 4, "tab, answer"),
        (GOOD + "4 Where is Mary?\tgarden\n", 4, "tab, answer"),
        (GOOD + "4 Where is Mary?\tgarden\t1\t2\n", 4, "tab, answer"),
        (GOOD + "4 Where is Mary\tgarden\t1\n", 4, "a question mark"),
        (GOOD + "4 Where is Mary?\t\t1\n", 4, "an answer"),
        (GOOD + "4 Where is Mary?\ta,,b\t1\n", 4, "an answer"),
        (GOOD + "4 Where is Mary?\tgarden\t\n", 4, "at least one supporting line"),
        (GOOD + "4 Where is Mary?\tgarden\t1 1\n", 4, "none twice"),
        (GOOD + "4 Where is Mary?\tgarden\t3\n", 4, "numbers of statements above"),
        (GOOD + "4 Where is Mary?\tgarden\t4\n", 4, "numbers of statements above"),
        (GOOD + "4 Where is Mary?\tgarden\tx\n", 4, "numbers of statements above"),
        (GOOD + "1 Where is Mary?\tgarden\t1\n", 4, "numbers of statements above"),
    ],
)
def test_malformed_lines_are_named(content: str, line: int, expected: str, tmp_path: Path) -> None:
    path = tmp_path / file_name(1)
    path.write_text(content)
    with pytest.raises(BadInput, match=expected) as error:
        read(path)
    assert str(error.value).startswith(f"{path}, line {line}: expected")
    assert "\n" not in str(error.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / file_name(1))
    with pytest.raises(BadInput, match="does not tell the story type"):
        read(tmp_path / "stories.txt")
    with pytest.raises(BadInput, match="allowed: 1 to 20"):
        read(tmp_path / "stories.txt", story_type=21)
    (tmp_path / file_name(1)).write_bytes(b"1 John went to the office.\n2 Mar\xff left.\n")
    with pytest.raises(BadInput, match="line 2: expected UTF-8 text, found byte 0xff"):
        read(tmp_path / file_name(1))


@given(st.text(alphabet="12 \t\r\n.?,aA\u00e9", max_size=60))
def test_any_text_is_read_or_refused(content: str) -> None:
    try:
        told = parse(content, 1)
    except BadInput as error:
        message = str(error)
    else:
        message = "text, line "
        assert parse(render(told), 1) == told
    assert message.startswith("text, line ")


def test_writing_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / file_name(1)
    write(path, parse(GOOD, 1))

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(BadInput, match="cannot be written"):
        write(path, [])
    assert path.read_text() == GOOD
    assert os.listdir(tmp_path) == [path.name]


def test_writing_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        write(tmp_path / "missing" / "qa1_.txt", parse(GOOD, 1))


def test_failing_stories_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / file_name(1)
    write(path, parse(GOOD, 1))

    def broken() -> object:
        yield Story(1, (Line(1, "John went to the office."),))
        raise RuntimeError("generator failed")

    with pytest.raises(RuntimeError):
        write(path, broken())  # type: ignore[arg-type]
    assert path.read_text() == GOOD
    assert os.listdir(tmp_path) == [path.name]
