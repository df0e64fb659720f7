#include <stdio.h>
#include "wing.h"

static float x[3 * 4];
static float y[3 * 2];

int main(void) {
    wing_model *model;
    int code = wing_create(&model);
    if (code != wing_OK) return fprintf(stderr, "error %d\n", code), 1;
    for (int i = 0; i < 3 * 4; i++) x[i] = 1;
    code = wing_predict(model, 3, x, y);
    if (code != wing_OK) fprintf(stderr, "error %d: %s\n", code, wing_message(model));
    for (int row = 0; row < 3; row++) printf("%.9g\n", (double)y[row * 2]);
    wing_destroy(model);
    return code;
}
