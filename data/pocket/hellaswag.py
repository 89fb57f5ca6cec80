"""Generator of `pocket_hellaswag`: an everyday scene with four endings, one of them sensible.

Half of the documents are scenes of ordered steps (`data/tasks/pocket_hellaswag/scenes.txt`): the right
ending is the next step with the right things and person. The others need the state of the scene: who
holds what, what lies where, how many are left, who stands where.
"""

from __future__ import annotations

import functools
import itertools
import random
import re

from pocket.paths import TASKS

SHE = (
    "Anna Bella Clara Dora Ella Fiona Grace Helen Iris Julia Karen Laura Maria Nina Olga Paula Rosa Sara Tina"
).split()
HE = ("Adam Ben Carl David Eric Frank George Henry Ivan Jack Kevin Leo Mark Noah Oscar Paul Robert Sam Tom").split()
OPENINGS = (
    "",
    "",
    "",
    "In the morning ",
    "After lunch ",
    "On Sunday ",
    "Today ",
    "At noon ",
    "In the afternoon ",
)
ASIDES = (
    "",
    "",
    "",
    "",
    "The sun is shining. ",
    "It is a quiet day. ",
    "The radio is on. ",
    "A cat is watching. ",
    "Some children look on. ",
    "Birds sing outside. ",
    "It is getting late. ",
)
LINKS = ("Then", "Next", "After that", "Now")


@functools.cache
def scenes() -> list[tuple[str, dict[str, list[str]], list[str]]]:
    """(activity label, slot -> values, steps) for every scene."""
    found: list[tuple[str, dict[str, list[str]], list[str]]] = []
    for line in (TASKS / "pocket_hellaswag" / "scenes.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            found.append((line.strip("[]"), {}, []))
        elif " = " in line and not line.startswith("#"):
            name, values = line.split(" = ")
            found[-1][1][name] = values.split(" | ")
        elif line and not line.startswith("#"):
            found[-1][2].append(line)
    return found


def _person(rng: random.Random) -> tuple[str, str, str]:
    """(name, pronoun, possessive)"""
    return (rng.choice(SHE), "she", "her") if rng.random() < 0.5 else (rng.choice(HE), "he", "his")


def _fill(step: str, values: dict[str, str], possessive: str) -> str:
    """The step with its slots filled, without its mark, with "an" before a vowel."""
    return re.sub(r"\ba (?=[aeiou])", "an ", step.lstrip("~").format(his=possessive, **values))


def steps_scene(rng: random.Random) -> tuple[str, str, str, list[str]]:
    """One or two steps of a scene; wrong endings repeat, skip, swap, or leave the activity."""
    label, slots, steps = rng.choice(scenes())
    name, pronoun, possessive = _person(rng)
    other = "he" if pronoun == "she" else "she"
    fill = {slot: rng.choice(values) for slot, values in slots.items()}
    shown = rng.choice((1, 2))
    start = rng.randrange(len(steps) - shown)
    following = start + shown
    bare = rng.random() < 0.6  # the context names the person, so the endings do not

    def write(step: str, values: dict[str, str] = fill, who: str = pronoun, bare: bool = bare) -> str:
        return f"{'' if bare else who + ' '}{_fill(step, values, 'his' if who == 'he' else 'her')}."

    if shown == 2:  # long enough without an opening and an aside
        context = f"{name} {_fill(steps[start], fill, possessive)}. "
        context += f"{rng.choice(('Then', 'Next', 'Soon'))} {write(steps[start + 1], bare=False)} "
    else:
        context = f"{rng.choice(OPENINGS)}{name} {_fill(steps[start], fill, possessive)}. {rng.choice(ASIDES)}"
    context += rng.choice(LINKS) + (f" {pronoun}" if bare else "")
    right = write(steps[following])

    near: list[str] = []
    for slot, values in slots.items():
        if "{" + slot + "}" in steps[following] and any("{" + slot + "}" in step for step in steps[start:following]):
            swapped = fill | {slot: rng.choice([value for value in values if value != fill[slot]])}
            near.append(write(steps[following], swapped))
    near.append(write(steps[rng.randrange(start, following)]))
    later = [step for i, step in enumerate(steps[following + 1 :]) if i or not step.startswith("~")]
    if later:
        near.append(write(rng.choice(later)))
    if not bare:
        near.append(write(steps[following], who=other))
    foreign_label, foreign_slots, foreign_steps = rng.choice(scenes())
    far = []
    if foreign_label != label:
        foreign = {slot: rng.choice(values) for slot, values in foreign_slots.items()}
        far.append(write(rng.choice(foreign_steps[1:]), foreign))
    rng.shuffle(near)
    wrong = list(dict.fromkeys(ending for ending in far + near if ending != right))
    return label, context, right, wrong


THINGS = "key ball book cup coin ring map pen shoe hat lamp knife letter phone toy scarf".split()
PLACES = "drawer box bag closet basket car kitchen shed desk garage cellar chest".split()


def moving(rng: random.Random) -> tuple[str, str, str, list[str]]:
    """Two things are put and moved; the ending takes one of them from where it is now."""
    name, pronoun, _ = _person(rng)
    first, second = rng.sample(THINGS, 2)
    places = rng.sample(PLACES, 4)
    where = {first: places[0], second: places[1]}
    context = f"{name} puts the {first} in the {places[0]} and the {second} in the {places[1]}."
    for place in places[2 : rng.choice((2, 3, 3, 4))]:
        thing = rng.choice((first, second))
        context += f" {rng.choice(LINKS)} {pronoun} moves the {thing} to the {place}."
        where[thing] = place
    wanted = rng.choice((first, second))
    other = second if wanted == first else first
    context += f" Later {pronoun} needs the {wanted} and"
    right = f"takes the {wanted} out of the {where[wanted]}."
    wrong = [f"takes the {other} out of the {where[other]}."]
    wrong += [f"takes the {wanted} out of the {place}." for place in places if place != where[wanted]]
    return "Looking for things", context, right, wrong


def passing(rng: random.Random) -> tuple[str, str, str, list[str]]:
    """A thing goes from hand to hand; the ending is done by the one who has it."""
    people = rng.sample(SHE + HE, 4)
    thing, other = rng.sample(THINGS, 2)
    chain = rng.sample(people, rng.choice((3, 3, 4)))
    context = f"{chain[0]} has a {thing}."
    if rng.random() < 0.5:
        context = f"{chain[0]} has a {thing} and {chain[1]} has a {other}."
    for giver, taker in itertools.pairwise(chain):
        context += f" {giver} gives {taker} the {thing}."
    context += " At the end"
    endings = [f"{person} has the {thing}." for person in people]
    right = f"{chain[-1]} has the {thing}."
    if " and " in context and rng.random() < 0.4:
        right = f"{chain[1]} has the {other}."
        endings = [f"{person} has the {other}." for person in people]
    return "Passing things on", context, right, [ending for ending in endings if ending != right]


def counting(rng: random.Random) -> tuple[str, str, str, list[str]]:
    """Things are added and removed; the ending says how many are there."""
    name, pronoun, _ = _person(rng)
    thing = rng.choice("apples eggs cards plates stamps nails roses candles cookies pears".split())
    place = rng.choice("basket box bowl bag crate".split())
    count = rng.randint(3, 15)
    context = f"{name} has {count} {thing} in a {place}."
    previous = count
    for _ in range(rng.choice((1, 1, 2))):
        previous, change = count, rng.randint(1, min(8, count - 1)) if count > 1 else 1
        if rng.random() < 0.5 and change < count:
            count -= change
            context += f" {pronoun.capitalize()} takes {change} out."
        else:
            count += change
            context += f" {pronoun.capitalize()} puts {change} more in."
    context += f" Now {pronoun}"
    options = [previous + (previous - count), previous, count + 1, count - 1, count + 2, count + 10]
    wrong = list(dict.fromkeys(number for number in options if number > 0 and number != count))
    return "Counting", context, f"counts {count} {thing}.", [f"counts {number} {thing}." for number in wrong]


def queue(rng: random.Random) -> tuple[str, str, str, list[str]]:
    """People stand in a line; the ending says who is served next."""
    people = rng.sample(SHE + HE, 4)
    facts = [f"{people[i + 1]} stands behind {people[i]}." for i in range(3)]
    if rng.random() < 0.5:
        rng.shuffle(facts)
    shop = rng.choice(("baker", "butcher", "ticket office", "post office", "ice cream stand"))
    served = rng.choice((0, 0, 1))
    context = f"Four people wait at the {shop}. {' '.join(facts)}"
    context += f" {people[0]} is served and leaves. Next" if served else " First"
    endings = [f"{person} is served." for person in people]
    return (
        "Waiting in line",
        context,
        endings[served],
        [ending for ending in endings if ending != endings[served]],
    )


def weather(rng: random.Random) -> tuple[str, str, str, list[str]]:
    """The ending has to fit the weather, the time or the need."""
    name, pronoun, possessive = _person(rng)
    needs = (
        ("it is raining hard", "opens an umbrella"),
        ("it is icy cold", "puts on a warm coat"),
        ("it is very hot", "drinks cold water"),
        ("the room is dark", "turns on the lamp"),
        ("the phone is ringing", "answers the phone"),
        ("the door is locked", "takes out the key"),
        ("the plants are dry", "waters the plants"),
        ("the dog is hungry", "fills the dog's bowl"),
        ("the milk is spilled", "wipes the floor"),
        ("the bath is full", "turns off the tap"),
        ("the baby is crying", "rocks the baby"),
        ("the soup is too hot", "waits for it to cool"),
        ("the battery is empty", "plugs in the charger"),
        ("the knife is blunt", "sharpens the blade"),
        ("the bus is leaving", "runs to the stop"),
        ("the wind is strong", "holds on to the hat"),
        ("the shoe is untied", "ties the lace"),
        ("the window is broken", "sweeps up the glass"),
        ("the clock is slow", "sets the clock"),
        ("the grass is too high", "gets the mower"),
    )
    chosen = rng.sample(needs, 4)
    place = rng.choice(("at home", "in the yard", "at work", "on a trip", "at school"))
    context = f"{name} is {place} and sees that {chosen[0][0]}."
    if rng.random() < 0.6:
        context = f"{name} is {place}. {chosen[1][0].capitalize()}, so {pronoun} {chosen[1][1]}."
        context += f" Later {chosen[0][0]}."
    context += f" So {pronoun}"
    return "Reacting", context, f"{chosen[0][1]}.", [f"{act}." for _, act in chosen[1:]]


FAMILIES = ((steps_scene, 11), (moving, 3), (passing, 2), (counting, 2), (queue, 2), (weather, 1))
_WEIGHTS = list(itertools.accumulate(weight for _, weight in FAMILIES))


def sample(rng: random.Random) -> dict:
    """One document {activity_label, ctx, endings (4), label (0-3)}; labels are uniform."""
    while True:
        activity, context, right, wrong = rng.choices(FAMILIES, cum_weights=_WEIGHTS)[0][0](rng)
        if len(wrong) >= 3:
            break
    label = rng.randrange(4)
    endings = wrong[:3]
    rng.shuffle(endings)
    endings.insert(label, right)
    return {"activity_label": activity, "ctx": context, "endings": endings, "label": label}
