"""iou and box_accuracy of random answers, beside Python that tries every pairing.

usage: boxes_test.py BOXES_PROBE"""
import itertools
import json
import random
import subprocess
import sys
import unittest

PROBE = sys.argv.pop(1)
FORMS = [lambda box: f"[{', '.join(map(str, box))}]", lambda box: ",".join(f"({x},{y})" for x, y in zip(box[::2], box[1::2])),
         lambda box: json.dumps({"bbox_2d": box, "label": "(a) dog"})]


def overlap(one, other):
    width, height = (max(0, min(one[2 + axis], other[2 + axis]) - max(one[axis], other[axis])) for axis in (0, 1))
    area = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    union = sum(area) - width * height
    return width * height / union if union > 0 else 0


def paired(answered, expected, weight):
    """The best of all pairings."""
    if not answered or not expected:
        return 0
    short, long, turned = (answered, expected, False) if len(answered) <= len(expected) else (expected, answered, True)
    value = lambda one, other: weight(other, one) if turned else weight(one, other)
    return max(sum(map(value, short, chosen)) for chosen in itertools.permutations(long, len(short))) / len(long)


class Boxes(unittest.TestCase):
    def test_numbers_are_those_of_every_pairing(self):
        draw = random.Random(3)

        def box(whole):
            number = (lambda: draw.randrange(30)) if whole else (lambda: round(draw.random(), 3))
            (left, right), (top, bottom) = (sorted((number(), number())) for _ in range(2))
            return [left, top, right, bottom]

        def text(boxes, form):
            return " and ".join(map(form, boxes))

        lines, right = [], []
        for _ in range(3000):
            whole, form = draw.random() < 0.5, draw.choice(FORMS)
            answered = [box(whole) for _ in range(draw.randrange(5))]
            expected = [[box(whole) for _ in range(draw.randrange(1, 5))] for _ in range(draw.randrange(1, 3))]
            is_of_points = draw.random() < 0.2
            if is_of_points:
                answered = [place[:2] for place in answered]
            lines.append(json.dumps({"answer": text(answered, form), "expected": [text(boxes, form) for boxes in expected]}))
            hit = (lambda point, place: place[0] <= point[0] <= place[2] and place[1] <= point[1] <= place[3]) if is_of_points else (
                lambda one, other: overlap(one, other) >= 0.5)
            right.append((0 if is_of_points else max(paired(answered, boxes, overlap) for boxes in expected),
                          max(paired(answered, boxes, hit) for boxes in expected)))
        out = subprocess.run([PROBE], input="\n".join(lines), capture_output=True, text=True, check=True).stdout.split("\n")
        self.assertEqual(len(out), len(lines) + 1)
        for line, found, expected in zip(lines, out, right):
            for ours, theirs in zip(map(float, found.split()), expected):
                self.assertAlmostEqual(ours, theirs, delta=1e-14, msg=line)
        self.assertGreater(len({round(iou, 6) for iou, _ in right}), 1000)


if __name__ == "__main__":
    unittest.main()
