/* Cubins, which are ELF files for the machine EM_CUDA: reads the names out of them, and writes the ones that the
 * linker gives out. A kernel has its code in a section .text.NAME; a variable is a symbol of type object. */
#define _GNU_SOURCE
#include "image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_PREFIX ".text."
/* A section of ours: the linker's inputs held code that we cannot look into (fatbins, archives, LTO). */
#define OPAQUE_SECTION ".gpuslice.opaque"

struct elf { /* a file whose header and section table were found to lie inside it */
    const uint8_t *bytes;
    size_t size;
    Elf64_Ehdr header;
    size_t budget; /* bytes that may still be copied out of it: names can overlap, and must not add up to gigabytes */
};

static bool inside(const struct elf *elf, uint64_t offset, uint64_t bytes) {
    return offset <= elf->size && bytes <= elf->size - offset;
}

static bool spend(struct elf *elf, size_t bytes) {
    bool enough = bytes <= elf->budget;
    elf->budget -= enough ? bytes : 0;
    return enough;
}

/* Headers are copied out: nothing says that an image is aligned. */
static Elf64_Shdr section_at(const struct elf *elf, size_t index) {
    Elf64_Shdr section;
    memcpy(&section, elf->bytes + elf->header.e_shoff + index * sizeof section, sizeof section);
    return section;
}

/* The text at an offset of a string table; NULL when it does not end inside the table. */
static const char *text_at(const struct elf *elf, const Elf64_Shdr *table, uint64_t offset) {
    if (table->sh_type != SHT_STRTAB || !inside(elf, table->sh_offset, table->sh_size) || offset >= table->sh_size) {
        return NULL;
    }
    const char *text = (const char *)elf->bytes + table->sh_offset + offset;
    return memchr(text, '\0', table->sh_size - offset) != NULL ? text : NULL;
}

bool elf_recognised(const void *bytes, size_t size) {
    return size >= SELFMAG && memcmp(bytes, ELFMAG, SELFMAG) == 0;
}

static bool elf_open(const void *bytes, size_t size, struct elf *elf) {
    *elf = (struct elf){.bytes = bytes, .size = size, .budget = size > SIZE_MAX / 2 ? SIZE_MAX : 2 * size};
    if (size < sizeof elf->header) {
        return false;
    }
    memcpy(&elf->header, bytes, sizeof elf->header);
    return elf->header.e_ident[EI_CLASS] == ELFCLASS64 && elf->header.e_ident[EI_DATA] == ELFDATA2LSB &&
           elf->header.e_machine == EM_CUDA && elf->header.e_shentsize == sizeof(Elf64_Shdr) &&
           elf->header.e_shstrndx < elf->header.e_shnum &&
           inside(elf, elf->header.e_shoff, (uint64_t)elf->header.e_shnum * sizeof(Elf64_Shdr));
}

size_t elf_size(const void *memory) {
    struct elf elf;
    if (!elf_open(memory, SIZE_MAX, &elf)) {
        return sizeof(Elf64_Ehdr); /* as much as was looked at: elf_parse will refuse it too */
    }
    uint64_t end = elf.header.e_shoff + (uint64_t)elf.header.e_shnum * sizeof(Elf64_Shdr);
    for (size_t i = 0; i < elf.header.e_shnum; i++) {
        Elf64_Shdr section = section_at(&elf, i);
        uint64_t section_end;
        if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL &&
            !__builtin_add_overflow(section.sh_offset, section.sh_size, &section_end) && section_end > end) {
            end = section_end;
        }
    }
    return end;
}

static CUresult add_variables(struct elf *elf, const Elf64_Shdr *table, struct image *image) {
    if (table->sh_link >= elf->header.e_shnum || !inside(elf, table->sh_offset, table->sh_size)) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    Elf64_Shdr names = section_at(elf, table->sh_link);
    for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym symbol;
        memcpy(&symbol, elf->bytes + table->sh_offset + i * sizeof symbol, sizeof symbol);
        if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_size == 0 || symbol.st_shndx == SHN_UNDEF ||
            symbol.st_shndx >= elf->header.e_shnum) {
            continue;
        }
        const char *name = text_at(elf, &names, symbol.st_name);
        Elf64_Shdr section = section_at(elf, symbol.st_shndx);
        const void *initial = NULL;
        if (name == NULL || symbol.st_value > section.sh_size || symbol.st_size > section.sh_size - symbol.st_value) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
        if (section.sh_type != SHT_NOBITS) {
            if (!inside(elf, section.sh_offset, section.sh_size)) {
                return CUDA_ERROR_INVALID_IMAGE;
            }
            initial = elf->bytes + section.sh_offset + symbol.st_value;
        }
        if (!spend(elf, strlen(name) + (initial != NULL ? symbol.st_size : 0))) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
        CUresult result = image_add_variable(image, name, strlen(name), symbol.st_size, initial);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

CUresult elf_parse(const void *bytes, size_t size, struct image *image) {
    struct elf elf;
    if (!elf_open(bytes, size, &elf)) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    Elf64_Shdr names = section_at(&elf, elf.header.e_shstrndx);
    for (size_t i = 1; i < elf.header.e_shnum; i++) { /* section 0 is reserved */
        Elf64_Shdr section = section_at(&elf, i);
        const char *name = text_at(&elf, &names, section.sh_name);
        CUresult result = CUDA_SUCCESS;
        if (name == NULL) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
        if (section.sh_type == SHT_SYMTAB) {
            result = add_variables(&elf, &section, image);
        } else if (strcmp(name, OPAQUE_SECTION) == 0) {
            image->opaque = true;
        } else if (strncmp(name, TEXT_PREFIX, strlen(TEXT_PREFIX)) == 0 && name[strlen(TEXT_PREFIX)] != '\0') {
            name += strlen(TEXT_PREFIX);
            result = spend(&elf, strlen(name)) ? image_add_kernel(image, name, strlen(name)) : CUDA_ERROR_INVALID_IMAGE;
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

/* ---- writing ----
 * header | names | initial values | symbols | section table. One table of names serves sections and symbols.
 * Sections: none, names, symbols, initial values, zeros, one per kernel, and the mark for opaque code. */

enum { SECTION_NAMES = 1, SECTION_SYMBOLS, SECTION_VALUES, SECTION_ZEROS, SECTION_FIRST_KERNEL };

struct writer {
    uint8_t *bytes;
    size_t names_used; /* from the end of the header */
};

static uint32_t put_name(struct writer *writer, const char *prefix, const char *name) {
    char *to = (char *)writer->bytes + sizeof(Elf64_Ehdr) + writer->names_used;
    size_t at = writer->names_used;
    writer->names_used += (size_t)(stpcpy(stpcpy(to, prefix), name) - to) + 1;
    return (uint32_t)at;
}

CUresult elf_write(const struct image *image, void **bytes, size_t *size) {
    size_t names_bytes = 1 + sizeof(".names") + sizeof(".symtab") + sizeof(".nv.global.init") + sizeof(".nv.global") +
                         sizeof(OPAQUE_SECTION);
    size_t values_bytes = 0, zeros_bytes = 0;
    size_t section_count = SECTION_FIRST_KERNEL + image->kernel_count + (image->opaque ? 1 : 0);
    for (size_t i = 0; i < image->kernel_count; i++) {
        names_bytes += strlen(TEXT_PREFIX) + strlen(image->kernels[i]) + 1;
    }
    for (size_t i = 0; i < image->variable_count; i++) {
        const struct image_variable *variable = &image->variables[i];
        names_bytes += strlen(variable->name) + 1;
        if (__builtin_add_overflow(variable->initial != NULL ? values_bytes : zeros_bytes, variable->bytes,
                                   variable->initial != NULL ? &values_bytes : &zeros_bytes)) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
    }
    if (section_count >= SHN_LORESERVE || names_bytes > UINT32_MAX) {
        return CUDA_ERROR_NOT_SUPPORTED; /* more kernels than section numbers */
    }
    size_t values_at = sizeof(Elf64_Ehdr) + names_bytes;
    size_t symbols_at = (values_at + values_bytes + 7) / 8 * 8;
    size_t sections_at = symbols_at + (image->variable_count + 1) * sizeof(Elf64_Sym);
    *size = sections_at + section_count * sizeof(Elf64_Shdr);
    struct writer writer = {.bytes = calloc(1, *size), .names_used = 1};
    if (writer.bytes == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }

    *(Elf64_Ehdr *)writer.bytes = (Elf64_Ehdr){
        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
        .e_type = ET_EXEC,
        .e_machine = EM_CUDA,
        .e_version = EV_CURRENT,
        .e_shoff = sections_at,
        .e_ehsize = sizeof(Elf64_Ehdr),
        .e_shentsize = sizeof(Elf64_Shdr),
        .e_shnum = (uint16_t)section_count,
        .e_shstrndx = SECTION_NAMES,
    };
    Elf64_Shdr *sections = (Elf64_Shdr *)(writer.bytes + sections_at);
    Elf64_Sym *symbols = (Elf64_Sym *)(writer.bytes + symbols_at);
    sections[SECTION_NAMES] = (Elf64_Shdr){.sh_name = put_name(&writer, "", ".names"),
                                           .sh_type = SHT_STRTAB,
                                           .sh_offset = sizeof(Elf64_Ehdr),
                                           .sh_size = names_bytes};
    sections[SECTION_SYMBOLS] = (Elf64_Shdr){.sh_name = put_name(&writer, "", ".symtab"),
                                             .sh_type = SHT_SYMTAB,
                                             .sh_offset = symbols_at,
                                             .sh_size = (image->variable_count + 1) * sizeof(Elf64_Sym),
                                             .sh_link = SECTION_NAMES,
                                             .sh_entsize = sizeof(Elf64_Sym)};
    sections[SECTION_VALUES] = (Elf64_Shdr){.sh_name = put_name(&writer, "", ".nv.global.init"),
                                            .sh_type = SHT_PROGBITS,
                                            .sh_offset = values_at,
                                            .sh_size = values_bytes};
    sections[SECTION_ZEROS] = (Elf64_Shdr){
        .sh_name = put_name(&writer, "", ".nv.global"), .sh_type = SHT_NOBITS, .sh_size = zeros_bytes};
    for (size_t i = 0; i < image->kernel_count; i++) {
        sections[SECTION_FIRST_KERNEL + i] = (Elf64_Shdr){
            .sh_name = put_name(&writer, TEXT_PREFIX, image->kernels[i]), .sh_type = SHT_PROGBITS};
    }
    if (image->opaque) {
        sections[section_count - 1] =
            (Elf64_Shdr){.sh_name = put_name(&writer, "", OPAQUE_SECTION), .sh_type = SHT_PROGBITS};
    }
    size_t values_used = 0, zeros_used = 0;
    for (size_t i = 0; i < image->variable_count; i++) {
        const struct image_variable *variable = &image->variables[i];
        size_t *used = variable->initial != NULL ? &values_used : &zeros_used;
        symbols[i + 1] = (Elf64_Sym){.st_name = put_name(&writer, "", variable->name),
                                     .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
                                     .st_shndx = variable->initial != NULL ? SECTION_VALUES : SECTION_ZEROS,
                                     .st_value = *used,
                                     .st_size = variable->bytes};
        if (variable->initial != NULL) {
            memcpy(writer.bytes + values_at + values_used, variable->initial, variable->bytes);
        }
        *used += variable->bytes;
    }
    *bytes = writer.bytes;
    return CUDA_SUCCESS;
}
