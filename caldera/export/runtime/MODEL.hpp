// MODEL in C++: a handle as an object, errors as exceptions.
#ifndef @GUARD@
#define @GUARD@

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "MODEL.h"

namespace caldera {
namespace MODEL {

// An error code of MODEL.h, with its message.
class Error : public std::runtime_error {
  public:
    Error(int code, const std::string &message) : std::runtime_error(message), code_(code) {}
    int code() const { return code_; }

  private:
    int code_;
};

// The network. An object is used by one thread at a time; every thread may have its own.
class Model {
  public:
    Model() : handle_(nullptr) {
        const int code = MODEL_create(&handle_);
        if (code != MODEL_OK) throw Error(code, "MODEL_create: error " + std::to_string(code));
    }
    ~Model() { MODEL_destroy(handle_); }
    Model(Model &&other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    Model &operator=(Model &&other) noexcept {
        MODEL_model *mine = handle_;
        handle_ = other.handle_;
        other.handle_ = mine;
        return *this;
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    // The handle, for the functions of MODEL.h.
    MODEL_model *handle() const { return handle_; }
    // The processor whose code runs.
    std::string target() const { return MODEL_target(handle_); }

    // Write the weights to a safetensors file, for load_weights of Caldera.
    void store(const std::string &path) { check(MODEL_store(handle_, path.c_str())); }
    // Read the weights of this network from a .caldera or safetensors file.
    void load(const std::string &path) { check(MODEL_load(handle_, path.c_str())); }

// @FUNCTIONS@
  private:
    void check(int code) const {
        if (code != MODEL_OK) throw Error(code, MODEL_message(handle_));
    }
    template <typename T>
    static void check_size(const std::vector<T> &given, std::int64_t rows, std::size_t size) {
        if (given.size() != static_cast<std::size_t>(rows) * size)
            throw Error(MODEL_ROWS, "expected " + std::to_string(size) + " values for each of " +
                                     std::to_string(rows) + " rows, got " +
                                     std::to_string(given.size()));
    }

    MODEL_model *handle_;
};

}  // namespace MODEL
}  // namespace caldera

#endif
