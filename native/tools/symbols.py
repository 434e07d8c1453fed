"""Reads NVIDIA's public headers and writes the C that gives every driver and NVML name a symbol.

Run by the build (native/CMakeLists.txt), so no list of names is kept in the repository:

    symbols.py cuda OUT_DIR HEADER_DIR [HEADER_DIR ...]   newest header first
    symbols.py nvml OUT_DIR HEADER_DIR [HEADER_DIR ...]

`cuda` writes `cuda_stubs.c` (a weak "not supported" for every name, which a real definition overrides),
`cuda_per_thread.c` (the `_ptsz` and `_ptds` variants in terms of the plain ones), `cuda_entries.inc` (what
cuGetProcAddress answers: name, first version, variant, symbol), `cuda_errors.inc` and `cuda_names.txt`.
`nvml` writes `nvml_stubs.c` and `nvml_names.txt`.

Both also write what a library needs that stands in front of the real one: `*_indexes.h` (a number for every function)
and `*_forwarders.c` (a weak definition of every function that calls the real one).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_PER_THREAD = ("_ptsz", "_ptds")
#: What NVIDIA's headers want of OpenGL's, EGL's and VDPAU's.
_GRAPHICS = Path(__file__).resolve().parent.parent / "graphics"
_TYPEDEFS = ("cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h")


@dataclass(frozen=True)
class Function:
    """One exported function as a header declares it."""

    name: str
    parameters: str
    result: str

    @property
    def per_thread_of(self) -> str | None:
        for suffix in _PER_THREAD:
            if self.name.endswith(suffix):
                return self.name.removesuffix(suffix)
        return None


def preprocess(folder: Path, header: str, *defines: str) -> str:
    """The header as the compiler sees it, so that conditional names and renames are resolved by the compiler itself."""
    command = [os.environ.get("CC", "cc"), "-E", "-P", "-x", "c", f"-I{folder}", f"-I{_GRAPHICS}"]
    command += [f"-D{define}" for define in defines]
    # VDPAU's own header is the only one that NVIDIA's do not include themselves.
    included = f"#include <vdpau/vdpau.h>\n#include <{header}>\n"
    return subprocess.run([*command, "-"], input=included, check=True, capture_output=True, text=True).stdout


def functions(text: str, result_type: str, prefix: str) -> dict[str, Function]:
    """Every `result_type name(parameters);` in preprocessed text, and the few that answer with a text."""
    found: dict[str, Function] = {}
    pattern = rf"\b({result_type}|const\s+char\s*\*)\s*\b({prefix}[A-Z]\w*)\s*\(([^;{{]*)\)\s*;"
    for result, name, parameters in re.findall(pattern, text):
        found.setdefault(name, Function(name, " ".join(parameters.split()), result))
    return found


def merged(folders: list[Path], header: str, result_type: str, prefix: str, *defines: str) -> dict[str, Function]:
    union: dict[str, Function] = {}
    for folder in folders:
        for name, function in functions(preprocess(folder, header, *defines), result_type, prefix).items():
            union.setdefault(name, function)
    return dict(sorted(union.items()))


def parameter_names(parameters: str) -> list[str]:
    if parameters in ("", "void"):
        return []
    names = []
    for parameter in parameters.split(","):
        match = re.search(r"(\w+)\s*(?:\[\d*\])?$", parameter.strip())
        if match is None:
            raise ValueError(f"no name in parameter {parameter!r}")
        names.append(match.group(1))
    return names


def per_thread_wrapper(function: Function, base: str) -> str:
    """`_ptsz` functions read stream 0 as the thread's own stream; `_ptds` ones have no stream to translate."""
    arguments = []
    for parameter, name in zip(function.parameters.split(","), parameter_names(function.parameters), strict=True):
        is_stream = re.search(r"\bCUstream\s+\w+$", parameter.strip()) is not None
        arguments.append(f"{name} ? {name} : CU_STREAM_PER_THREAD" if is_stream else name)
    return (
        f"__attribute__((weak)) CUresult {function.name}({function.parameters}) {{\n"
        f"    return {base}({', '.join(arguments)});\n}}\n"
    )


def suffix_order(symbol: str) -> int:
    match = re.search(r"_v(\d+)$", symbol)
    return int(match.group(1)) if match else 1


# Where a new ABI took another function's name instead of a number, which no function-pointer type shows.
_RENAMED = [("cuGraphInstantiate", 12000, "", "cuGraphInstantiateWithFlags")]


def entries(typedefs: str, symbols: set[str]) -> list[tuple[str, int, str, str]]:
    """(name, first CUDA version, per-thread suffix or "", exported symbol), from the header of function-pointer types.

    The header names each ABI by the version that brought it (PFN_cuCtxCreate_v11040); exports number them
    (cuCtxCreate_v3). Both grow together, so the n-th oldest version belongs to the n-th oldest symbol.
    """
    versions: dict[tuple[str, str], set[int]] = defaultdict(set)
    for name, version, suffix in re.findall(r"\*\s*PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)", typedefs):
        versions[name, suffix].add(int(version))
    result = []
    for (name, suffix), found in sorted(versions.items()):
        candidates = [s for s in symbols if re.fullmatch(rf"{name}(_v\d+)?{suffix}", s)]
        candidates.sort(key=lambda s: suffix_order(s.removesuffix(suffix) if suffix else s))
        ordered = sorted(found)
        for position, version in enumerate(ordered):
            if candidates:
                index = max(len(candidates) - len(ordered) + position, 0)
                result.append((name, version, suffix, candidates[index]))
    return result + _RENAMED


# Exported, though no header that we read declares them.
_UNDECLARED = {
    "cuProfilerStart": "void",
    "cuProfilerStop": "void",
    "cuProfilerInitialize": "const char *configFile, const char *outputFile, int outputMode",
    "cuGetProcAddress_ptsz": "const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags",
}
# nvidia-smi asks for it, and gives up where it is not.
_UNDECLARED_NVML = {"nvmlInternalGetExportTable": "const void **table, const void *id"}


def indexes(prefix: str, names: list[str]) -> str:
    guard = f"GPUSLICE_{prefix.upper()}_INDEXES_H"
    return (
        f"/* Generated by native/tools/symbols.py. */\n#ifndef {guard}\n#define {guard}\n"
        f"#define {prefix.upper()}_FUNCTION_NAMES(X) \\\n"
        + " \\\n".join(f"    X({name})" for name in names)
        + f"\nenum {prefix}_index {{\n"
        + "".join(f"    INDEX_{name},\n" for name in names)
        + f"    {prefix.upper()}_FUNCTIONS\n}};\n#endif\n"
    )


def forwarders(declared: dict[str, Function], header: str) -> str:
    """Typed, so that the compiler of any architecture passes the arguments on."""
    text = f'/* Generated by native/tools/symbols.py. */\n#include "{header}"\n'
    for name, function in declared.items():
        arguments = ", ".join(parameter_names(function.parameters))
        declaration = f"{function.result} {name}({function.parameters})"
        if name in _UNDECLARED | _UNDECLARED_NVML:
            text += f"{declaration};\n"
        text += f"__attribute__((weak)) {declaration} {{\n    return REAL({name})({arguments});\n}}\n"
    return text


def error_table(text: str) -> str:
    """CUresult's enumerators as (value, name, the name in words)."""
    body = re.search(r"typedef enum cudaError_enum \{(.*?)\} CUresult;", text, re.DOTALL)
    if body is None:
        raise ValueError("cuda.h has no CUresult enumeration")
    words = {"CUDA_SUCCESS": "no error", "CUDA_ERROR_INVALID_VALUE": "invalid argument"}
    return "".join(
        f'{{{value}, "{name}", "{words.get(name, name.removeprefix("CUDA_ERROR_").replace("_", " ").lower())}"}},\n'
        for name, value in re.findall(r"(CUDA_\w+)\s*=\s*(\d+)", body.group(1))
    )


def stubs(names: list[str], result: int, guard: str) -> str:
    return (
        "/* Generated by native/tools/symbols.py. A weak answer for every name: a real definition overrides it. */\n"
        f"int {guard}(void);\n"
        + "".join(
            f"int {name}(void);\n__attribute__((weak)) int {name}(void) {{ return {guard}(); }}\n" for name in names
        )
        + f"__attribute__((weak)) int {guard}(void) {{ return {result}; }}\n"
    )


def write_cuda(out: Path, include_dirs: list[Path]) -> None:
    declared = merged(include_dirs, "cuda_graphics.h", "CUresult", "cu", "__CUDA_API_VERSION_INTERNAL")
    declared |= {name: Function(name, parameters, "CUresult") for name, parameters in _UNDECLARED.items()}
    names = sorted(declared)
    wrappers = []
    for name, function in declared.items():
        base = function.per_thread_of
        if base is not None and base in declared and name not in _UNDECLARED:
            wrappers.append(per_thread_wrapper(function, base))
    wrapped = {re.search(r"CUresult (\w+)\(", text).group(1) for text in wrappers}  # type: ignore[union-attr]
    plain = [name for name in names if name not in wrapped]
    typedefs = "".join(
        preprocess(folder, header, "__CUDA_API_VERSION_INTERNAL") for folder in include_dirs for header in _TYPEDEFS
    )
    table = entries(typedefs, set(names))
    covered = {symbol for _, _, _, symbol in table}
    # Names with no function-pointer type (none is public): answer from the first version on.
    table += [(name, 2000, "", name) for name in plain if name not in covered and not re.search(r"_v\d+$", name)]
    out.mkdir(parents=True, exist_ok=True)
    (out / "cuda_stubs.c").write_text(stubs(plain, 801, "sim_cuda_unsupported"))
    (out / "cuda_per_thread.c").write_text(
        "/* Generated by native/tools/symbols.py. */\n#define __CUDA_API_VERSION_INTERNAL\n"
        "#include <cuda_graphics.h>\n" + "".join(wrappers)
    )
    variants = {"": 0, "_ptsz": 1, "_ptds": 1}
    (out / "cuda_entries.inc").write_text(
        "".join(
            f'ENTRY("{name}", {version}, {variants[suffix]}, {symbol})\n'
            for name, version, suffix, symbol in sorted(table)
        )
    )
    (out / "cuda_errors.inc").write_text(error_table(preprocess(include_dirs[0], "cuda.h")))
    (out / "cuda_names.txt").write_text("\n".join(names) + "\n")
    (out / "cuda_indexes.h").write_text(indexes("cuda", names))
    (out / "cuda_forwarders.c").write_text(forwarders(declared, "real_cuda.h"))


def write_nvml(out: Path, include_dirs: list[Path]) -> None:
    declared = merged(include_dirs, "nvml.h", "nvmlReturn_t", "nvml", "NVML_NO_UNVERSIONED_FUNC_DEFS")
    declared = merged(include_dirs, "nvml.h", "nvmlReturn_t", "nvml") | declared
    declared |= {name: Function(name, parameters, "nvmlReturn_t") for name, parameters in _UNDECLARED_NVML.items()}
    names = sorted(declared)
    out.mkdir(parents=True, exist_ok=True)
    (out / "nvml_stubs.c").write_text(stubs(names, 3, "sim_nvml_unsupported"))
    (out / "nvml_names.txt").write_text("\n".join(names) + "\n")
    (out / "nvml_indexes.h").write_text(indexes("nvml", names))
    (out / "nvml_forwarders.c").write_text(forwarders(declared, "real_nvml.h"))


def main(arguments: list[str]) -> int:
    if len(arguments) < 3 or arguments[0] not in ("cuda", "nvml"):
        print(__doc__, file=sys.stderr)
        return 2
    write = {"cuda": write_cuda, "nvml": write_nvml}[arguments[0]]
    write(Path(arguments[1]), [Path(folder) for folder in arguments[2:]])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
