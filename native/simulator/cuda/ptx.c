/* PTX text: finds `.entry NAME` and the variables in `.global` and `.const` at the top level. Initial values of
 * variables are not read: those of PTX start as zeros. */
#define _GNU_SOURCE
#include "image.h"

#include <ctype.h>
#include <string.h>

struct token { /* a word (directive, name, number) or a single other character; length 0 at the end of the text */
    const char *text;
    size_t length;
};

struct reader {
    const char *at, *end;
};

static bool token_is(struct token token, const char *text) {
    return token.length == strlen(text) && memcmp(token.text, text, token.length) == 0;
}

static bool in_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

static void skip_until(struct reader *reader, const char *mark) {
    const char *found = memmem(reader->at, (size_t)(reader->end - reader->at), mark, strlen(mark));
    reader->at = found != NULL ? found + strlen(mark) : reader->end;
}

static bool at_mark(const struct reader *reader, const char *mark) {
    size_t length = strlen(mark);
    return (size_t)(reader->end - reader->at) >= length && memcmp(reader->at, mark, length) == 0;
}

static struct token next_token(struct reader *reader) {
    while (reader->at < reader->end) {
        if (isspace((unsigned char)*reader->at)) {
            reader->at++;
        } else if (at_mark(reader, "//")) {
            skip_until(reader, "\n");
        } else if (at_mark(reader, "/*")) {
            skip_until(reader, "*/");
        } else if (*reader->at == '"') { /* file names and debug text: nothing in them is code */
            reader->at++;
            skip_until(reader, "\"");
        } else {
            break;
        }
    }
    const char *start = reader->at;
    while (reader->at < reader->end && in_word(*reader->at)) {
        reader->at++;
    }
    if (reader->at == start && reader->at < reader->end) {
        reader->at++;
    }
    return (struct token){start, (size_t)(reader->at - start)};
}

/* A decimal number with an optional U; 0 for all else, as no size may be 0. */
static size_t number(struct token token) {
    size_t value = 0;
    for (size_t i = 0; i < token.length; i++) {
        if (token.text[i] == 'U' && i + 1 == token.length) {
            break;
        }
        if (!isdigit((unsigned char)token.text[i]) || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (size_t)(token.text[i] - '0'), &value)) {
            return 0;
        }
    }
    return value;
}

/* The bytes of a type: .u32, .b8, .f16x2, .pred and so on; 0 for what is no type of a variable. */
static size_t type_bytes(struct token token) {
    if (token.length < 3 || strchr("bsuf", token.text[1]) == NULL) {
        return 0;
    }
    size_t digits = 2;
    while (digits < token.length && isdigit((unsigned char)token.text[digits])) {
        digits++;
    }
    size_t bytes = number((struct token){token.text + 2, digits - 2}) / 8;
    return digits + 2 == token.length && memcmp(token.text + digits, "x2", 2) == 0 ? bytes * 2 : bytes;
}

/* What follows `.global` or `.const`: [.align N] [.attribute(...)] [.v2] .type NAME [ "[" N "]" ]... */
static CUresult add_variable(struct reader *reader, struct image *image) {
    size_t bytes = 0, elements = 1;
    struct token token = next_token(reader);
    for (; token.length > 0 && token.text[0] == '.'; token = next_token(reader)) {
        if (token_is(token, ".align")) {
            next_token(reader);
        } else if (token_is(token, ".attribute")) {
            skip_until(reader, ")");
        } else if (token_is(token, ".v2") || token_is(token, ".v4")) {
            elements = (size_t)(token.text[2] - '0');
        } else {
            bytes = type_bytes(token);
        }
    }
    struct token name = token;
    if (name.length == 0 || !in_word(name.text[0])) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    for (;;) { /* the dimensions; an empty one counts as unknown, and so the variable is not ours to place */
        struct reader ahead = *reader;
        if (!token_is(next_token(&ahead), "[")) {
            break;
        }
        if (__builtin_mul_overflow(elements, number(next_token(&ahead)), &elements)) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
        *reader = ahead;
        skip_until(reader, "]");
    }
    if (__builtin_mul_overflow(bytes, elements, &bytes)) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    return bytes == 0 ? CUDA_SUCCESS : image_add_variable(image, name.text, name.length, bytes, NULL);
}

bool ptx_recognised(const char *text, size_t size) {
    struct reader reader = {text, text + size};
    return token_is(next_token(&reader), ".version");
}

CUresult ptx_parse(const char *text, size_t size, struct image *image) {
    const char *terminator = memchr(text, '\0', size);
    struct reader reader = {text, terminator != NULL ? terminator : text + size};
    size_t depth = 0;
    bool external = false; /* `.extern .global x` belongs to another module */
    for (struct token token = next_token(&reader); token.length > 0; token = next_token(&reader)) {
        CUresult result = CUDA_SUCCESS;
        if (token_is(token, "{")) {
            depth++;
        } else if (token_is(token, "}")) {
            depth -= depth > 0;
        } else if (depth > 0) {
            continue;
        } else if (token_is(token, ".extern")) {
            external = true;
        } else if (token_is(token, ";")) {
            external = false;
        } else if (token_is(token, ".entry")) {
            struct token name = next_token(&reader);
            result = name.length > 0 && in_word(name.text[0]) ? image_add_kernel(image, name.text, name.length)
                                                              : CUDA_ERROR_INVALID_IMAGE;
        } else if ((token_is(token, ".global") || token_is(token, ".const")) && !external) {
            result = add_variable(&reader, image);
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}
