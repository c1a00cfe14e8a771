"""Tiny copies of ImageNet and COCO, in the layout of the originals."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.tiny_images import BOX, COLOURS, picture

HEIGHT, WIDTH = 30, 40


def save_imagenet(folder: Path, colours: Sequence[str]) -> Path:
    """Fill `folder` with images of one colour each; classes are indices in `COLOURS`."""
    lines = []
    for number, colour in enumerate(colours, start=1):
        name = f"ILSVRC2012_val_{number:08}.JPEG"
        (folder / name).write_bytes(picture(colour, height=HEIGHT, width=WIDTH))
        lines.append(f"{name} {list(COLOURS).index(colour)}\n")
    (folder / "val_map.txt").write_text("".join(lines))
    return folder


def save_coco(folder: Path, colours: Sequence[str]) -> Path:
    """Fill `folder` with images of one colour each, with an object of that category at `BOX`."""
    (folder / "val2017").mkdir()
    (folder / "annotations").mkdir()
    top, left, bottom, right = BOX
    box = [left * WIDTH, top * HEIGHT, (right - left) * WIDTH, (bottom - top) * HEIGHT]
    images, annotations = [], []
    for number, colour in enumerate(colours, start=1):
        image_id, name = 100 * number, f"{100 * number:012}.jpg"
        (folder / "val2017" / name).write_bytes(picture(colour, height=HEIGHT, width=WIDTH))
        images.append({"id": image_id, "file_name": name, "height": HEIGHT, "width": WIDTH})
        annotations.append(
            {
                "id": number,
                "image_id": image_id,
                "category_id": list(COLOURS).index(colour) + 1,
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": 0,
            }
        )
    categories = [{"id": i, "name": name} for i, name in enumerate(COLOURS, start=1)]
    instances = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations" / "instances_val2017.json").write_text(json.dumps(instances))
    return folder


def logged(folder: Path, responses: dict[int, bytes]) -> Path:
    """Write an accuracy log in LoadGen's format."""
    path = folder / "mlperf_log_accuracy.json"
    entries = [
        {"seq_id": seq, "qsl_idx": index, "data": data.hex().upper()}
        for seq, (index, data) in enumerate(responses.items())
    ]
    path.write_text(json.dumps(entries))
    return path
