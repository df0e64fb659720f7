/* --- weights: safetensors files, which Caldera reads and writes too */

typedef struct {
    const char *entry; /* the entry of the header, up to the range of bytes */
    int64_t offset, nbytes;
} weight_t;

static const weight_t weights[] = {
    // @ENTRIES@
};

static int store(MODEL_model *model, FILE *file) {
    if (fwrite(MODEL_header, 1, HEADER_BYTES, file) != HEADER_BYTES) return 0;
    for (int64_t i = 0; i < WEIGHTS; i++) {
        size_t nbytes = (size_t)weights[i].nbytes;
        if (fwrite(model->variables + weights[i].offset, 1, nbytes, file) != nbytes) return 0;
    }
    return 1;
}

int MODEL_store(MODEL_model *model, const char *path) {
    if (model == NULL) return MODEL_NULL;
    model->message[0] = 0;
    if (path == NULL) return fail(model, MODEL_NULL, "the path is a null pointer");
    size_t length = strlen(path);
    char *unfinished = malloc(length + 12);
    if (unfinished == NULL) return fail(model, MODEL_MEMORY, "not enough memory");
    memcpy(unfinished, path, length);
    memcpy(unfinished + length, ".unfinished", 12);
    FILE *file = fopen(unfinished, "wb");
    int done = file != NULL && store(model, file);
    if (file != NULL && fclose(file) != 0) done = 0;
    if (done && rename(unfinished, path) != 0) done = 0;
    if (!done && file != NULL) remove(unfinished);
    free(unfinished);
    return done ? MODEL_OK : fail(model, MODEL_FILE, "cannot write %.300s", path);
}

static int is_little_endian(void) {
    const uint16_t one = 1;
    return *(const unsigned char *)&one;
}

/* Read the weights whose ranges the header states; return the name of a part that is wrong. */
static const char *read_weights(FILE *file, const char *header, int64_t start,
                                unsigned char *target) {
    int64_t entries = 0;
    for (const char *at = header; (at = strstr(at, "\"data_offsets\":[")) != NULL; at++) entries++;
    if (entries != WEIGHTS) return "its number of tensors";
    for (int64_t i = 0; i < WEIGHTS; i++) {
        const char *at = strstr(header, weights[i].entry);
        if (at == NULL) return weights[i].entry;
        char *rest;
        long long begin = strtoll(at + strlen(weights[i].entry), &rest, 10);
        if (*rest != ',' || begin < 0) return weights[i].entry;
        long long end = strtoll(rest + 1, &rest, 10);
        if (*rest != ']' || end - begin != weights[i].nbytes) return weights[i].entry;
        if (begin > INT64_MAX / 2 || start > LONG_MAX - begin) return weights[i].entry;
        if (fseek(file, (long)(start + begin), SEEK_SET) != 0) return "its length";
        size_t nbytes = (size_t)weights[i].nbytes;
        if (fread(target + weights[i].offset, 1, nbytes, file) != nbytes) return "its length";
    }
    return NULL;
}

int MODEL_load(MODEL_model *model, const char *path) {
    if (model == NULL) return MODEL_NULL;
    model->message[0] = 0;
    if (path == NULL) return fail(model, MODEL_NULL, "the path is a null pointer");
    FILE *file = fopen(path, "rb");
    if (file == NULL) return fail(model, MODEL_FILE, "cannot read %.300s", path);
    uint64_t length = 0;
    const char *wrong = "its header";
    char *header = NULL;
    /* Nothing changes unless the whole file is right. */
    unsigned char *read = malloc((size_t)VARIABLE_BYTES + 1);
    if (fread(&length, 1, sizeof length, file) == sizeof length && is_little_endian() &&
        length < MOST_HEADER_BYTES && (header = malloc((size_t)length + 1)) != NULL &&
        read != NULL && fread(header, 1, (size_t)length, file) == length) {
        header[length] = 0;
        memcpy(read, model->variables, (size_t)VARIABLE_BYTES);
        wrong = read_weights(file, header, (int64_t)length + 8, read);
        if (wrong == NULL) memcpy(model->variables, read, (size_t)VARIABLE_BYTES);
    }
    fclose(file);
    free(header);
    free(read);
    if (wrong == NULL) return MODEL_OK;
    return fail(model, MODEL_FILE, "%.300s is no file with these weights: see %.100s", path, wrong);
}
