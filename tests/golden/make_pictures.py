#!/usr/bin/env python3
"""Makes tests/golden/pictures/: small pictures of each format, and what transformers has of them (tests/vision/test_picture.c).

    python tests/golden/make_pictures.py            needs transformers 5.24, Pillow 13, numpy

pictures.txt has a line for each: file, width, height, RGB in hex. They are exif_transpose() of Pillow and then transformers'
convert_to_rgb(), which puts what is transparent onto white. 16 bits of grey, which Pillow clips at 255, are high bytes here.
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb

DIR = Path(__file__).parent / "pictures"
W, H = 19, 13


def base():
    y, x = np.mgrid[0:H, 0:W]
    return np.stack([x * 255 // W, y * 255 // H, (x * 7 + y * 11) % 256], -1).astype(np.uint8)


def main():
    rgb = Image.fromarray(base())
    alpha = Image.fromarray(((np.mgrid[0:H, 0:W][1] * 37) % 256).astype(np.uint8))
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    palette = rgb.quantize(16)
    grey16 = (base()[..., 0].astype(np.uint16) << 8) + 77
    made = {
        "rgb.jpg": (rgb, {"quality": 92}),
        "grey.jpg": (rgb.convert("L"), {}),
        "cmyk.jpg": (rgb.convert("CMYK"), {"quality": 95}),
        "progressive.jpg": (rgb, {"progressive": True, "subsampling": 0}),
        "rgb.png": (rgb, {}),
        "grey.png": (rgb.convert("L"), {}),
        "bit.png": (rgb.convert("1"), {}),
        "palette.png": (palette, {}),
        "palette_clear.png": (palette, {"transparency": 3}),
        "rgba.png": (rgba, {}),
        "grey_alpha.png": (rgba.convert("LA"), {}),
        "grey16.png": (Image.fromarray(grey16), {}),
        "lossless.webp": (rgb, {"lossless": True}),
        "alpha.webp": (rgba, {"lossless": True, "exact": True}),
        "lossy.webp": (rgb, {"quality": 90}),
    }
    DIR.mkdir(exist_ok=True)
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        made[f"turn{turn}.png"] = (rgb, {"exif": exif})
        if turn in (6, 7):
            made[f"turn{turn}.jpg"] = (rgb, {"exif": exif})
            made[f"turn{turn}.webp"] = (rgb, {"exif": exif, "lossless": True})
    lines = []
    for name, (picture, options) in made.items():
        picture.save(DIR / name, **options)
        seen = ImageOps.exif_transpose(Image.open(DIR / name))
        if name == "grey16.png":
            seen = Image.fromarray((grey16 >> 8).astype(np.uint8))
        out = convert_to_rgb(seen, return_numpy=True)
        lines.append(f"{name} {out.shape[1]} {out.shape[0]} {out.tobytes().hex()}")
    (DIR / "pictures.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
