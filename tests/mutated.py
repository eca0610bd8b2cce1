"""Damage to bytes, for the tests that give damaged files."""

import random


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One to four changes: a byte, a bit, a cut, a hole of zeros, a piece twice or gone, an end mark behind a cut."""
    content = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(max(1, len(content)))
        if dice.random() < 0.3:
            place = min(place, dice.randrange(64))  # Headers are small and hold the sizes.
        length = dice.randint(1, 64)
        match dice.randrange(7):
            case 0:
                content[place:place + 1] = bytes([dice.randrange(256)])
            case 1:
                content[place:place + 1] = bytes([byte ^ 1 << dice.randrange(8) for byte in content[place:place + 1]])
            case 2:
                del content[place:]
            case 3:
                content[place:place + length] = bytes(len(content[place:place + length]))
            case 4:
                content[place:place] = content[place:place + length]
            case 5:
                del content[place:place + length]
            case 6:
                content[place:] = dice.choice([b'\xff\xd9', b'\0\0\0\0IEND\xaeB`\x82', b'\0;', b''])
    return bytes(content)
