"""bAbI stories as a task: the rows are the encoded stories, told from the generator alone."""

import pytest
import torch

from headcount.config import BadInput
from headcount.tasks import BabiStories, babi, babi_stories, random_stream
from headcount.tasks.task import IGNORED


@pytest.mark.parametrize("story_type", range(1, 21))
@pytest.mark.parametrize("layout", ["statements", "words"])
def test_every_type_fits_and_answers_at_the_last_token(story_type, layout):
    task = BabiStories.parse({"story_type": story_type, "layout": layout})
    inputs, targets = task.sample(23, random_stream(0, "train"))
    assert inputs.shape == (23, task.length, task.input_width)
    last = (inputs != 0).any(-1).sum(-1) - 1
    assert (targets.gather(1, last[:, None]) != IGNORED).all()
    assert ((targets != IGNORED).sum(-1) == 1).all()


@pytest.mark.parametrize("story_type", range(1, 21))
def test_the_label_is_what_the_statements_say(story_type):
    task = BabiStories(story_type=story_type, noise="clean", last=500)
    stories = task._enough(20, random_stream(2, "train"))
    _, targets = task.sample(20, random_stream(2, "train"))
    answers = [task.told.answers[row[row != IGNORED].item()] for row in targets]
    solved = [
        babi.solve(story_type, above, question.text, "clean").answer
        for story in stories
        for question, above in story.asked()
    ]
    assert answers == [answer.lower() for answer in solved[:20]]


def test_default_memory_loses_no_supporting_statement():
    for story_type in (1, 4, 9, 15, 16, 17, 19, 20):
        task = BabiStories.parse({"story_type": story_type})
        assert task.memory < 50
        for story in task._enough(200, random_stream(0, "train")):
            for question, above in story.asked():
                kept = {line.number for line in above[-task.memory :]}
                assert kept.issuperset(question.support)
    assert BabiStories.parse({"story_type": 1, "statements": 20}).memory == 50
    assert BabiStories(story_type=1).changed(story_type=3).memory == 50


def test_longer_samples_begin_with_shorter_ones():
    task = BabiStories(story_type=2)
    short, long = (task.sample(size, random_stream(0, "test")) for size in (7, 31))
    assert torch.equal(short.inputs, long.inputs[:7])
    assert torch.equal(short.targets, long.targets[:7])


def test_a_story_is_shown_with_its_reasons():
    shown = BabiStories(story_type=1).show(0, 2)
    stories = babi.parse(shown, 1)
    assert len(stories) == 2
    assert all(question.support for story in stories for question in story.questions)


def test_one_fact_stories_have_the_known_shortcut():
    found = BabiStories(story_type=1).floors(500)
    assert found["latest about it"] == 1
    assert found["majority"] < 0.3


def test_own_files_are_learned_from_with_their_splits_apart(tmp_path):
    stories = babi.stories(babi.Babi.parse({"story_type": 1}), 40, seed=3)
    babi.write(tmp_path / babi.file_name(1, "train"), stories[:30])
    babi.write(tmp_path / babi.file_name(1, "test"), stories[30:])
    task = BabiStories.parse({"name": "babi", "path": str(tmp_path)})
    drawn = {}
    for split, known in (("train", stories[:27]), ("validation", stories[27:30]), ("test", stories[30:])):
        batch = task.draw(split, 64, random_stream(0, split))
        assert torch.equal(batch.inputs, task.draw(split, 64, random_stream(0, split)).inputs)
        possible = {tuple(row) for row in task.encode(known).inputs.flatten(1).tolist()}
        drawn[split] = {tuple(row) for row in batch.inputs.flatten(1).tolist()}
        assert drawn[split] <= possible
    babi.write(tmp_path / babi.file_name(1, "test"), stories[:30])
    babi_stories._questions.cache_clear()
    again = BabiStories.parse(task.model_dump(mode="json"))
    with pytest.raises(BadInput, match="changed since"):
        again.draw("test", 1, random_stream(1, "test"))
    with pytest.raises(BadInput, match="cannot be read"):
        BabiStories.parse({"name": "babi", "path": str(tmp_path / "none")})
    with pytest.raises(BadInput, match="is of generated stories"):
        BabiStories.parse({"name": "babi", "path": str(tmp_path), "people": 3})
