#include "runtime.h"

extern const unsigned char wing_native_own[];
void wing_native_k0(int64_t *, int64_t, int64_t);
void wing_native_k1(int64_t *, int64_t, int64_t);
static const kernel_t kernels[] = {
    wing_native_k0,
    wing_native_k1
};
static const int64_t slots_predict_0[] = {
    0LL,
    0LL,
    0LL,
    0LL,
    4LL,
    1LL,
    2LL,
    2LL,
    1LL,
    1LL,
    2LL,
    4LL,
    0LL
};
static const call_t calls_predict_0[] = {
    {0, 0, 1, -1, "matmul_epilogue"}
};
static const relocation_t relocations_predict_0[] = {
    {0, 2, 0},
    {2, 1, 0},
    {12, 1, 128}
};
static const relocation_t links_predict_0[] = {
    {1, 4, 0},
    {3, 5, 0}
};
static const port_t ports_predict_0[] = {
    {0, 0, 4, 2, 16, 16, {1, 4}, {16, 4}},
    {1, 0, 4, 2, 8, 8, {1, 2}, {8, 4}}
};
static const int64_t slots_predict_1[] = {
    0LL,
    0LL,
    0LL,
    0LL,
    4LL,
    1LL,
    2LL,
    2LL,
    1LL,
    32LL,
    2LL,
    4LL,
    0LL
};
static const call_t calls_predict_1[] = {
    {1, 0, 1, -1, "matmul_epilogue"}
};
static const relocation_t relocations_predict_1[] = {
    {0, 2, 0},
    {2, 1, 0},
    {12, 1, 128}
};
static const relocation_t links_predict_1[] = {
    {1, 4, 0},
    {3, 5, 0}
};
static const port_t ports_predict_1[] = {
    {0, 0, 4, 2, 16, 512, {32, 4}, {16, 4}},
    {1, 0, 4, 2, 8, 256, {32, 2}, {8, 4}}
};
static const plan_t plans_predict[] = {
    {1, 13, 1, 3, 2, 2, 0, 0, 24, slots_predict_0, calls_predict_0, relocations_predict_0, links_predict_0, ports_predict_0},
    {32, 13, 1, 3, 2, 2, 0, 64, 24, slots_predict_1, calls_predict_1, relocations_predict_1, links_predict_1, ports_predict_1}
};
static int can_run(void) {
    return 1;
}
const image_t wing_native_image = {"native", can_run, {{plans_predict, 2}, {0, 0}, {0, 0}, {0, 0}}, kernels, wing_native_own};
