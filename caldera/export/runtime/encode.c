/* --- rows of a table: numbers and categories as the features that the network takes */

typedef struct {
    const char *name, *const *categories;
    int64_t offset, count; /* categories, or -1 of numbers */
    int has_encoder, marks_missing;
    double mean, scale, median;
} column_t;

// @COLUMNS@

static int encode_number(MODEL_model *model, const column_t *column, int64_t row, double value,
                         MODEL_input_t *x) {
    int missing = isnan(value);
    if (missing && column->has_encoder) value = column->median;
    float feature = (float)(value / column->scale - column->mean / column->scale);
    if (!isfinite(value) || !isfinite(feature))
        return fail(model, MODEL_VALUE, "row %lld, column %.100s: expected a finite number, got %g",
                    (long long)row, column->name, value);
    x[0] = feature;
    if (column->marks_missing) x[1] = (float)missing;
    return MODEL_OK;
}

static void encode_category(const column_t *column, const char *value, MODEL_input_t *x) {
    for (int64_t i = 0; i < column->count; i++)
        x[i] = value != NULL && strcmp(value, column->categories[i]) == 0;
    if (column->marks_missing) x[column->count] = value == NULL;
}

int MODEL_encode(MODEL_model *model, int64_t rows, const MODEL_row *table, MODEL_input_t *x) {
    if (model == NULL) return MODEL_NULL;
    model->message[0] = 0;
    if (rows < 0) return fail(model, MODEL_ROWS, "expected rows >= 0, got %lld", (long long)rows);
    if (rows > 0 && (table == NULL || x == NULL))
        return fail(model, MODEL_NULL, "argument %d is a null pointer", table == NULL ? 3 : 4);
    for (int64_t row = 0; row < rows; row++)
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
            const column_t *column = &columns[i];
            const unsigned char *field = (const unsigned char *)&table[row] + column->offset;
            if (column->count < 0) {
                double value;
                memcpy(&value, field, sizeof value);
                int code = encode_number(model, column, row, value, x);
                if (code != MODEL_OK) return code;
            } else {
                const char *value;
                memcpy(&value, field, sizeof value);
                encode_category(column, value, x);
            }
            x += (column->count < 0 ? 1 : column->count) + column->marks_missing;
        }
    return MODEL_OK;
}
