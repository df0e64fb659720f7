// Times of one network in three libraries, by turns on one core: an export of Caldera, ONNX Runtime
// (its C API) and LibTorch. Printed as JSON. See exported.py.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#ifdef WITH_TORCH
#include <ATen/Parallel.h>
#include <torch/script.h>
#endif

using Call = std::function<void()>;
// Rounds are shorter than the time slices of a busy machine, and the lower quartile is reported.
constexpr int ROUNDS = 101;
constexpr double ROUND_S = 0.002;

static void need(bool ok, const char *what) {
    if (!ok) std::fprintf(stderr, "%s\n", what), std::exit(1);
}

// Processor time: on a busy machine, elapsed time counts what other programs computed meanwhile.
static double now() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Functions of ONNX Runtime by their position in OrtApi, which only grows at its end: the wheel has
// the library, but not its header.
static const void *const *onnx_api() {
    void *library = dlopen(std::getenv("ONNXRUNTIME"), RTLD_NOW | RTLD_LOCAL);
    need(library, "no ONNX Runtime");
    struct Base {
        const void *const *(*api)(std::uint32_t);
        const char *(*version)();
    };
    auto base = reinterpret_cast<const Base *(*)()>(dlsym(library, "OrtGetApiBase"))();
    return base->api(17);
}
enum { CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10, SET_LEVEL = 23,
       SET_INTRA = 24, SET_INTER = 25, CREATE_TENSOR = 49, CREATE_MEMORY = 69 };

template <typename... T>
static void ask(const void *const *api, int number, T... given) {
    auto function = reinterpret_cast<void *(*)(T...)>(const_cast<void *>(api[number]));
    need(function(given...) == nullptr, "ONNX Runtime reports an error");
}

struct Network {
    std::vector<std::int64_t> input, output;
    bool integers;
    std::vector<float> x, y;
    std::vector<std::int64_t> codes;
    void *data() { return integers ? static_cast<void *>(codes.data()) : x.data(); }
    std::size_t bytes() { return integers ? codes.size() * 8 : x.size() * 4; }
};

static std::int64_t product(const std::vector<std::int64_t> &sizes) {
    std::int64_t all = 1;
    for (auto each : sizes) all *= each;
    return all;
}

static Call caldera_call(Network &network, const std::string &path) {
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    need(library, "no export of Caldera");
    void *model = nullptr;
    need(reinterpret_cast<int (*)(void **)>(dlsym(library, "net_create"))(&model) == 0, "create");
    auto predict = reinterpret_cast<int (*)(void *, std::int64_t, const void *, float *)>(
        dlsym(library, "net_predict"));
    return [=, &network] {
        need(predict(model, network.input[0], network.data(), network.y.data()) == 0, "predict");
    };
}

static Call onnx_call(Network &network, const std::string &path) {
    auto api = onnx_api();
    void *env, *options, *session, *memory, *x, *y;
    ask(api, CREATE_ENV, 3, "benchmark", &env);
    ask(api, CREATE_OPTIONS, &options);
    ask(api, SET_INTRA, options, 1);
    ask(api, SET_INTER, options, 1);
    ask(api, SET_LEVEL, options, 99);
    ask(api, CREATE_SESSION, env, path.c_str(), options, &session);
    ask(api, CREATE_MEMORY, 0, 0, &memory);
    ask(api, CREATE_TENSOR, memory, network.data(), network.bytes(), network.input.data(),
        network.input.size(), network.integers ? 7 : 1, &x);
    ask(api, CREATE_TENSOR, memory, static_cast<void *>(network.y.data()), network.y.size() * 4,
        network.output.data(), network.output.size(), 1, &y);
    return [=]() mutable {
        static const char *inputs[] = {"input"}, *outputs[] = {"output"};
        const void *given[] = {x};
        ask(api, RUN, session, static_cast<void *>(nullptr), inputs, given, std::size_t{1}, outputs,
            std::size_t{1}, &y);
    };
}

#ifdef WITH_TORCH
static Call torch_call(Network &network, const std::string &path) {
    at::set_num_threads(1);
    auto module = std::make_shared<torch::jit::script::Module>(torch::jit::load(path));
    auto x = torch::from_blob(network.data(), network.input, torch::kFloat32);
    return [=, &network] {
        c10::InferenceMode guard;
        auto y = module->forward({x}).toTensor();
        std::copy_n(y.data_ptr<float>(), network.y.size(), network.y.data());
    };
}
#endif

// exported NAME PATH KIND ROWS ... : see exported.py.
int main(int count, char **arguments) {
    need(count == 6, "expected: folder, floats or integers, input shape, output shape, highest integer");
    std::string folder = arguments[1];
    Network network;
    network.integers = std::string(arguments[2]) == "integers";
    for (int which = 3; which < 5; which++) {
        auto &sizes = which == 3 ? network.input : network.output;
        for (char *at = arguments[which]; *at; at += *at == ',') sizes.push_back(std::strtol(at, &at, 10));
    }
    std::int64_t size = product(network.input), highest = std::atol(arguments[5]);
    network.y.resize(static_cast<std::size_t>(product(network.output)));
    for (std::int64_t i = 0; i < size; i++) {
        std::uint32_t mixed = static_cast<std::uint32_t>(i + 1) * 2654435761u;
        network.x.push_back(static_cast<float>(mixed >> 8) / (1 << 23) - 1);
        network.codes.push_back(highest ? (mixed >> 16) % highest : 0);
    }
    std::vector<std::pair<std::string, Call>> calls;
    calls.emplace_back("caldera", caldera_call(network, folder + "/libnet.so"));
    calls.emplace_back("onnxruntime", onnx_call(network, folder + "/net.onnx"));
#ifdef WITH_TORCH
    if (FILE *file = std::fopen((folder + "/net.pt").c_str(), "rb")) {
        std::fclose(file);
        calls.emplace_back("libtorch", torch_call(network, folder + "/net.pt"));
    }
#endif
    std::vector<float> first;
    std::vector<std::vector<double>> seconds(calls.size());
    std::vector<long> repeats(calls.size(), 1);
    double worst = 0, largest = 0;
    for (std::size_t i = 0; i < calls.size(); i++) {
        for (int warm = 0; warm < 20; warm++) calls[i].second();
        std::fill(network.y.begin(), network.y.end(), NAN);
        calls[i].second();
        if (i == 0) first = network.y;
        for (std::size_t j = 0; j < first.size(); j++) {
            double difference = std::fabs(first[j] - network.y[j]);
            if (!(difference <= worst)) worst = difference;
            largest = std::max(largest, static_cast<double>(std::fabs(first[j])));
        }
        double begin = now();
        calls[i].second();
        repeats[i] = std::max(1l, static_cast<long>(ROUND_S / std::max(now() - begin, 1e-8)));
    }
    for (int round = 0; round < ROUNDS; round++)
        for (std::size_t i = 0; i < calls.size(); i++) {
            double begin = now();
            for (long n = 0; n < repeats[i]; n++) calls[i].second();
            seconds[i].push_back((now() - begin) / static_cast<double>(repeats[i]));
        }
    std::printf("{\"difference\": %g", worst / std::max(largest, 1e-30));
    for (std::size_t i = 0; i < calls.size(); i++) {
        std::sort(seconds[i].begin(), seconds[i].end());
        std::printf(", \"%s\": %.4g", calls[i].first.c_str(), 1e6 * seconds[i][ROUNDS / 4]);
    }
    std::printf("}\n");
}
