/* wing: a network trained with Caldera, as a library without Python.

   Arrays are dense and row-major, samples in order; Fortran's (features, n).
   A handle is used by one thread at a time; every thread may have its own. */
#ifndef WING_H
#define WING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WING_API __attribute__((visibility("default")))
#else
#define WING_API
#endif

enum {
    wing_OK = 0, /* success */
    wing_NULL = 1, /* a handle or an argument is a null pointer */
    wing_MEMORY = 2, /* not enough memory */
    wing_CPU = 3, /* the library has no code for this processor */
    wing_ROWS = 4, /* a number of rows that the function does not accept */
    wing_VALUE = 5, /* a value that the network refuses, or a loss that is not finite */
    wing_FILE = 6, /* a file that cannot be read or written, or does not fit */
};

typedef struct wing_model wing_model;

/* Create a handle with the weights of the trained model. */
WING_API int wing_create(wing_model **model);

/* Free a handle and its memory. */
WING_API void wing_destroy(wing_model *model);

/* Explain the last error of a handle. */
WING_API const char *wing_message(const wing_model *model);

/* Name the processor whose code a handle runs. */
WING_API const char *wing_target(const wing_model *model);

/* Compute the outputs of any number of rows.
   x[rows][4], y[rows][2] */
WING_API int wing_predict(wing_model *model, int64_t rows, const float *x, float *y);

#ifdef __cplusplus
}
#endif

#endif
