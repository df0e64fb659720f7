/* Tables of an exported model. Names with a prefix are seen by the linker, all others are not. */
#ifndef MODEL_RUNTIME_H
#define MODEL_RUNTIME_H

#include <stdint.h>

#define MOST_AXES 8
#define MOST_PORTS 16
#define MOST_HEADER_BYTES 100000000
enum { ARENA, VARIABLES, OWN, CODE, FIRST_PORT };

typedef void (*kernel_t)(int64_t *slots, int64_t part, int64_t parts);

typedef struct {
    int32_t kernel, first_slot, parts, status;
    const char *op;
} call_t;

typedef struct {
    int32_t slot, segment;
    int64_t offset;
} relocation_t;

/* An input or output. The strides are those of the plan, in bytes. */
typedef struct {
    int32_t is_output, is_reordered, itemsize, axes;
    int64_t row_bytes, nbytes;
    int64_t shape[MOST_AXES], strides[MOST_AXES];
} port_t;

typedef struct {
    int64_t rows, slot_count, call_count, relocation_count, link_count, port_count;
    int64_t arena_bytes, own_offset, own_bytes;
    const int64_t *slots;
    const call_t *calls;
    const relocation_t *relocations, *links;
    const port_t *ports;
} plan_t;

/* The plans are sorted by their number of rows. */
typedef struct {
    const char *name;
    const plan_t *plans;
    int64_t plan_count, is_whole;
} function_t;

/* The plans of all functions follow each other. */
typedef struct {
    const char *target;
    int (*can_run)(void);
    const function_t *functions;
    const plan_t *plans;
    int64_t plan_count;
    const kernel_t *kernels;
    const unsigned char *own;
} image_t;

#endif
