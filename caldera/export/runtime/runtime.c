/* Exported model: memory of a handle, execution of plans, and threads. */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNED(bytes) (((bytes) + 63) & ~(int64_t)63)

/* --- threads: the caller publishes a call, and every thread claims parts of it */

typedef struct {
    pthread_t *threads;
    int count, sleeping, stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Number of the call (32 bits), its parts (16), the next part that no thread has claimed (16). */
    _Atomic uint64_t ticket;
    _Atomic int64_t done, active;
    kernel_t kernel;
    int64_t *slots;
} pool_t;

static int take_part(pool_t *pool) {
    uint64_t seen = atomic_load(&pool->ticket);
    uint64_t parts = (seen >> 16) & 0xffff, part = seen & 0xffff;
    if (part >= parts) return 0;
    if (atomic_compare_exchange_weak(&pool->ticket, &seen, seen + 1)) {
        /* The call cannot change before all its parts are done. */
        pool->kernel(pool->slots, (int64_t)part, (int64_t)parts);
        atomic_fetch_add(&pool->done, 1);
    }
    return 1;
}

static void *work(void *given) {
    pool_t *pool = given;
    for (;;) {
        int idle = 0;
        while (atomic_load(&pool->active) || idle < 64) {
            if (take_part(pool)) idle = 0;
            else if (++idle % 16 == 0) sched_yield();
        }
        pthread_mutex_lock(&pool->lock);
        pool->sleeping++;
        while (!atomic_load(&pool->active) && !pool->stop) pthread_cond_wait(&pool->wake, &pool->lock);
        pool->sleeping--;
        int stop = pool->stop;
        pthread_mutex_unlock(&pool->lock);
        if (stop) return NULL;
    }
}

static void pool_begin(pool_t *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->active, 1);
    if (pool->sleeping) pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static void pool_run(pool_t *pool, kernel_t kernel, int64_t *slots, int64_t parts) {
    pool->kernel = kernel;
    pool->slots = slots;
    atomic_store(&pool->done, 0);
    uint64_t number = (atomic_load(&pool->ticket) >> 32) + 1;
    atomic_store(&pool->ticket, number << 32 | (uint64_t)parts << 16);
    while (take_part(pool)) {
    }
    for (int turn = 1; atomic_load(&pool->done) < parts; turn++)
        if (turn % 64 == 0) sched_yield();
}

static void pool_free(pool_t *pool) {
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->count; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool);
}

static pool_t *pool_new(int workers) {
    pool_t *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->threads = calloc((size_t)workers, sizeof *pool->threads);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    while (pool->threads != NULL && pool->count < workers &&
           pthread_create(&pool->threads[pool->count], NULL, work, pool) == 0)
        pool->count++;
    return pool;
}

/* --- a handle */

struct MODEL_model {
    const image_t *image;
    unsigned char *variables, *arena, *staging;
    /* The slots of each plan. */
    int64_t **slots;
    pool_t *pool;
    char message[512];
};

static int fail(MODEL_model *model, int code, const char *format, ...) {
    va_list given;
    va_start(given, format);
    vsnprintf(model->message, sizeof model->message, format, given);
    va_end(given);
    return code;
}

/* With `model` NULL, return the bytes that a handle takes; else lay its parts out behind it. */
static int64_t lay_out(const image_t *image, MODEL_model *model) {
    unsigned char *base = (unsigned char *)model;
    int64_t end = ALIGNED((int64_t)sizeof *model), arena = 64, staging = 64;
    if (model) model->variables = base + end;
    end += ALIGNED(VARIABLE_BYTES);
    if (model) model->slots = (int64_t **)(base + end);
    end += ALIGNED(image->plan_count * (int64_t)sizeof(int64_t *));
    for (int64_t i = 0; i < image->plan_count; i++) {
        const plan_t *plan = &image->plans[i];
        int64_t ports = 0;
        for (int64_t j = 0; j < plan->port_count; j++) ports += ALIGNED(plan->ports[j].nbytes);
        if (ports > staging) staging = ports;
        if (plan->arena_bytes > arena) arena = plan->arena_bytes;
        if (model) {
            model->slots[i] = (int64_t *)(base + end);
            memcpy(base + end, plan->slots, (size_t)plan->slot_count * sizeof(int64_t));
        }
        end += ALIGNED(plan->slot_count * (int64_t)sizeof(int64_t));
        if (model && plan->own_bytes)
            memcpy(base + end, image->own + plan->own_offset, (size_t)plan->own_bytes);
        end += ALIGNED(plan->own_bytes);
    }
    if (model) model->arena = base + end;
    end += ALIGNED(arena);
    if (model) model->staging = base + end;
    return end + ALIGNED(staging);
}

static void relocate(MODEL_model *model) {
    for (int64_t i = 0; i < model->image->plan_count; i++) {
        const plan_t *plan = &model->image->plans[i];
        int64_t *slots = model->slots[i];
        unsigned char *own = (unsigned char *)slots + ALIGNED(plan->slot_count * 8);
        for (int64_t j = 0; j < plan->relocation_count; j++) {
            const relocation_t *each = &plan->relocations[j];
            intptr_t place;
            if (each->segment == CODE) place = (intptr_t)model->image->kernels[each->offset];
            else if (each->segment == OWN) place = (intptr_t)(own + each->offset);
            else if (each->segment == ARENA) place = (intptr_t)(model->arena + each->offset);
            else place = (intptr_t)(model->variables + each->offset);
            slots[each->slot] = place;
        }
    }
}

int MODEL_create(MODEL_model **made) {
    if (made == NULL) return MODEL_NULL;
    *made = NULL;
    /* The best image that this processor can run. */
    const image_t *image = NULL;
    for (size_t i = 0; i < sizeof images / sizeof *images && image == NULL; i++)
        if (images[i]->can_run()) image = images[i];
    if (image == NULL) return MODEL_CPU;
    int64_t nbytes = lay_out(image, NULL);
    MODEL_model *model = aligned_alloc(64, (size_t)nbytes);
    if (model == NULL) return MODEL_MEMORY;
    memset(model, 0, (size_t)nbytes);
    model->image = image;
    lay_out(image, model);
    if (VARIABLE_BYTES) memcpy(model->variables, MODEL_variables, (size_t)VARIABLE_BYTES);
    relocate(model);
    if (THREADS > 1 && (model->pool = pool_new(THREADS - 1)) == NULL) {
        free(model);
        return MODEL_MEMORY;
    }
    *made = model;
    return MODEL_OK;
}

void MODEL_destroy(MODEL_model *model) {
    if (model == NULL) return;
    pool_free(model->pool);
    free(model);
}

const char *MODEL_message(const MODEL_model *model) {
    return model == NULL ? "no model was created" : model->message;
}

const char *MODEL_target(const MODEL_model *model) {
    return model == NULL ? "" : model->image->target;
}

/* --- running */

static int run_plan(MODEL_model *model, const plan_t *plan, int64_t *slots,
                    unsigned char *const *ports) {
    const kernel_t *kernels = model->image->kernels;
    for (int64_t i = 0; i < plan->link_count; i++) {
        const relocation_t *link = &plan->links[i];
        slots[link->slot] = (intptr_t)(ports[link->segment - FIRST_PORT] + link->offset);
    }
    for (int64_t i = 0; i < plan->call_count; i++) {
        const call_t *call = &plan->calls[i];
        int64_t *given = slots + call->first_slot;
        if (call->parts > 1 && model->pool)
            pool_run(model->pool, kernels[call->kernel], given, call->parts);
        else
            for (int64_t part = 0; part < call->parts; part++)
                kernels[call->kernel](given, part, call->parts);
        if (call->status >= 0) {
            int64_t *status = (int64_t *)(intptr_t)slots[call->status];
            if (*status) {
                *status = 0;
                return fail(model, MODEL_VALUE, "op.%s refuses a value of the input", call->op);
            }
        }
    }
    return MODEL_OK;
}

static void move_line(unsigned char *to, const unsigned char *from, int64_t count, int64_t to_step,
                      int64_t from_step, int32_t itemsize) {
    if (itemsize == 4)
        for (; count > 0; count--, to += to_step, from += from_step) memcpy(to, from, 4);
    else
        for (; count > 0; count--, to += to_step, from += from_step)
            memcpy(to, from, (size_t)itemsize);
}

/* Copy a sample between the order of the caller (row-major) and that of the plan. */
static void move_row(const port_t *port, unsigned char *plan, unsigned char *user, int to_plan) {
    if (!port->is_reordered) {
        memcpy(to_plan ? plan : user, to_plan ? user : plan, (size_t)port->row_bytes);
        return;
    }
    int64_t index[MOST_AXES] = {0}, last = port->axes - 1, step = port->itemsize;
    int64_t count = port->shape[last], stride = port->strides[last];
    for (;;) {
        if (to_plan) move_line(plan, user, count, stride, step, port->itemsize);
        else move_line(user, plan, count, step, stride, port->itemsize);
        user += count * step;
        int64_t axis = last - 1;
        for (; axis > 0; axis--) {
            plan += port->strides[axis];
            if (++index[axis] < port->shape[axis]) break;
            plan -= port->strides[axis] * port->shape[axis];
            index[axis] = 0;
        }
        if (axis <= 0) return;
    }
}

static unsigned char *row_of(const port_t *port, unsigned char *base, int64_t row) {
    return base + row * (port->is_reordered ? port->strides[0] : port->row_bytes);
}

/* The plan for the next rows: the largest that is full, or one that is filled up by repetition. */
static const plan_t *choose_plan(const function_t *function, int64_t left) {
    const plan_t *plans = function->plans;
    int64_t i = function->plan_count - 1;
    while (i > 0 && plans[i].rows > left) i--;
    if (i + 1 < function->plan_count && plans[i].rows < left) {
        int64_t full = left / plans[i].rows;
        if (full > 4 && plans[i + 1].rows <= 4 * left) i++;
    }
    return &plans[i];
}

static int run_rows(MODEL_model *model, const function_t *function, int64_t rows,
                    void *const *user) {
    unsigned char *ports[MOST_PORTS];
    for (int64_t done = 0; done < rows;) {
        int64_t offset = 0;
        const plan_t *plan = choose_plan(function, rows - done);
        int64_t taken = rows - done < plan->rows ? rows - done : plan->rows;
        for (int64_t j = 0; j < plan->port_count; j++) {
            const port_t *port = &plan->ports[j];
            unsigned char *given = (unsigned char *)user[j] + done * port->row_bytes;
            ports[j] = given;
            if (port->is_reordered || taken < plan->rows) {
                ports[j] = model->staging + offset;
                for (int64_t r = 0; r < plan->rows && !port->is_output; r++)
                    move_row(port, row_of(port, ports[j], r),
                             given + (r < taken ? r : taken - 1) * port->row_bytes, 1);
            }
            offset += ALIGNED(port->nbytes);
        }
        int code = run_plan(model, plan, model->slots[plan - model->image->plans], ports);
        if (code != MODEL_OK) return code;
        for (int64_t j = 0; j < plan->port_count; j++) {
            const port_t *port = &plan->ports[j];
            unsigned char *given = (unsigned char *)user[j] + done * port->row_bytes;
            for (int64_t r = 0; r < taken && port->is_output && ports[j] != given; r++)
                move_row(port, row_of(port, ports[j], r), given + r * port->row_bytes, 0);
        }
        done += taken;
    }
    return MODEL_OK;
}

/* Run the plan for exactly these rows. A number that it returns is a loss. */
static int run_whole(MODEL_model *model, const function_t *function, int64_t rows,
                     void *const *user) {
    int64_t i = 0;
    while (i + 1 < function->plan_count && function->plans[i].rows < rows) i++;
    if (function->plans[i].rows != rows)
        return fail(model, MODEL_ROWS, "%s has no code for %lld rows; the next number is %lld",
                    function->name, (long long)rows, (long long)function->plans[i].rows);
    int code = run_rows(model, function, rows, user);
    for (int64_t j = 0; j < function->plans[i].port_count && code == MODEL_OK; j++) {
        const port_t *port = &function->plans[i].ports[j];
        if (!port->is_output || port->axes) continue;
        double value = port->itemsize == 8 ? *(double *)user[j] : (double)*(float *)user[j];
        if (!isfinite(value)) code = fail(model, MODEL_VALUE, "the loss is %f", value);
    }
    return code;
}

static int run(MODEL_model *model, int number, int64_t rows, void *const *user) {
    if (model == NULL) return MODEL_NULL;
    const function_t *function = &model->image->functions[number];
    int64_t count = function->plans[0].port_count;
    model->message[0] = 0;
    if (rows < 0) return fail(model, MODEL_ROWS, "expected rows >= 0, got %lld", (long long)rows);
    for (int i = 0; i < count; i++)
        if (user[i] == NULL && rows > 0)
            return fail(model, MODEL_NULL, "argument %d is a null pointer", i + 3);
    if (model->pool) pool_begin(model->pool);
    int code = function->is_whole ? run_whole(model, function, rows, user)
                                  : run_rows(model, function, rows, user);
    if (model->pool) atomic_store(&model->pool->active, 0);
    return code;
}
