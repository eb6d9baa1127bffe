"""Where a function lies in an ELF file: what uprobe_events wants to know."""
import struct

SHT_SYMTAB, SHT_DYNSYM = 2, 11
STT_FUNC = 2


def _sections(image):
    offset, = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    for i in range(count):
        # type, address, offset, size, link, entry size
        yield struct.unpack_from("<4xI8xQQQI12xQ", image, offset + i * size)


def file_offset(path, function):
    """KeyError when there is no such function."""
    with open(path, "rb") as file:
        image = file.read()
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no 64-bit little-endian ELF file")
    sections = list(_sections(image))
    for kind, _, start, size, link, entry in sections:
        if kind not in (SHT_SYMTAB, SHT_DYNSYM):
            continue
        names = sections[link][2]
        for at in range(start, start + size, entry):
            name, info, section, value = struct.unpack_from("<IBxHQ", image, at)
            if info & 0xF != STT_FUNC or not 0 < section < len(sections):
                continue
            if image[names + name:image.index(b"\0", names + name)] == function.encode():
                return value - sections[section][1] + sections[section][2]
    raise KeyError(f"{path} has no function {function}")
