// measure.cuh: a plugin's table on a GPU, sets of buffers for its calls, and how long these take.
#pragma once
#include <fvlm/cuda.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <string>
#include <vector>

namespace {

using namespace fvlm::sdk;
using std::int64_t;

void need(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

__global__ void fill(std::uint32_t* words, int64_t count, fvlm_dtype dtype) {
  for (int64_t i = item_index(); i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    std::uint32_t hash = static_cast<std::uint32_t>(i) * 2654435761u;
    hash ^= hash >> 15;
    const float low = static_cast<float>(hash & 0xffff) / 32768 - 1, high = static_cast<float>(hash >> 16) / 32768 - 1;
    if (dtype.bits == 16)
      words[i] = BFloat16(low).bits | static_cast<std::uint32_t>(BFloat16(high).bits) << 16;
    else
      words[i] = bit_cast<std::uint32_t>(low);
  }
}

// A tensor in device memory, random, with its rows `stride` apart.
struct Buffer {
  fvlm_tensor tensor{};
  int64_t shape[3] = {}, strides[3] = {};
  int64_t bytes = 0; // of the elements

  Buffer(fvlm_dtype dtype, std::vector<int64_t> sizes, int64_t stride = 0) {
    tensor.dtype = dtype;
    tensor.ndim = static_cast<int>(sizes.size());
    int64_t step = 1, count = 1;
    for (std::size_t d = sizes.size(); d-- > 0;) {
      shape[d] = sizes[d];
      strides[d] = step;
      step *= sizes[d];
      count *= sizes[d];
    }
    if (stride) strides[0] = stride;
    tensor.shape = shape;
    tensor.strides = strides;
    tensor.device = {FVLM_CUDA, 0};
    const int64_t room = std::max<int64_t>(256, strides[0] * shape[0] * static_cast<int64_t>(bytes_of(dtype)));
    need(cudaMalloc(&tensor.data, static_cast<std::size_t>(room)), "memory");
    if (dtype.code == FVLM_INT)
      need(cudaMemset(tensor.data, 0, static_cast<std::size_t>(room)), "clear");
    else
      fill<<<1024, 256>>>(static_cast<std::uint32_t*>(tensor.data), room / 4, dtype);
    bytes = count * static_cast<int64_t>(bytes_of(dtype));
  }
  ~Buffer() { cudaFree(tensor.data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

struct Set {
  std::deque<Buffer> buffers;
  int64_t bytes = 0; // that a call moves

  fvlm_tensor* add(fvlm_dtype dtype, std::vector<int64_t> sizes, int times = 1, int64_t stride = 0) {
    Buffer& made = buffers.emplace_back(dtype, std::move(sizes), stride);
    bytes += times * made.bytes;
    return &made.tensor;
  }
};

const fvlm_host* host() {
  static fvlm_host host = [] {
    fvlm_host made{};
    made.struct_size = sizeof made;
    made.abi_major = FVLM_ABI_MAJOR;
    made.engine_version = "speed";
    made.log = [](const fvlm_host*, std::int32_t, const char*) {};
    made.parallel_for = [](const fvlm_host*, int64_t count, int64_t, void (*task)(void*, int64_t, int64_t),
                           void* context) { task(context, 0, count); };
    made.parallel_threads = [](const fvlm_host*) { return std::int32_t{1}; };
    return made;
  }();
  return &host;
}

char text[512];
fvlm_error sink{sizeof sink, sizeof text, text};

void need(fvlm_status status, const char* what) {
  if (status == FVLM_OK) return;
  std::fprintf(stderr, "%s: %d: %s\n", what, status, text);
  std::exit(1);
}

template <class Table>
struct Library {
  const Table* table = nullptr;
  fvlm_instance* instance = nullptr;

  Library(const char* path, const char* kind) {
    void* library = dlopen(path, RTLD_NOW);
    if (!library) std::fprintf(stderr, "%s\n", dlerror()), std::exit(1);
    const auto entry = reinterpret_cast<fvlm_plugin_entry_function>(dlsym(library, FVLM_PLUGIN_ENTRY));
    table = static_cast<const Table*>(entry(host())->table(kind));
    const fvlm_instance_config config{sizeof config, {FVLM_CUDA, 0}, host()};
    need(table->base.create(&config, &instance, &sink), "create");
  }
};

double copy_speed = 0;
const char* only = "";
cudaStream_t stream;

// Seconds that one replay takes, the median of five.
double seconds_of(const std::function<void()>& enqueue) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
  enqueue();
  need(cudaStreamEndCapture(stream, &graph), "end");
  need(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  cudaEvent_t before, after;
  need(cudaEventCreate(&before), "event");
  need(cudaEventCreate(&after), "event");
  std::vector<float> times;
  for (int i = 0; i < 7; ++i) {
    need(cudaEventRecord(before, stream), "record");
    need(cudaGraphLaunch(executable, stream), "launch");
    need(cudaEventRecord(after, stream), "record");
    need(cudaStreamSynchronize(stream), "wait");
    float time = 0;
    need(cudaEventElapsedTime(&time, before, after), "time");
    if (i > 1) times.push_back(time);
  }
  std::nth_element(times.begin(), times.begin() + 2, times.end());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return times[2] / 1e3;
}

// The caller frees its workspace.
fvlm_call call_with(uint64_t workspace) {
  fvlm_call call{};
  call.struct_size = sizeof call;
  call.flags = FVLM_DETERMINISTIC;
  call.device = {FVLM_CUDA, 0};
  call.stream = stream;
  call.workspace_size = workspace;
  call.host = host();
  call.error = &sink;
  need(cudaMalloc(&call.workspace, std::max<uint64_t>(workspace, 256)), "workspace");
  return call;
}

// `make` fills a set and returns what to call with it.
using Calls = std::function<void(const fvlm_call&)>;
void measure(const std::string& name, const std::function<Calls(Set&, uint64_t& workspace)>& make) {
  if (name.find(only) == std::string::npos) return;
  std::deque<Set> sets;
  std::vector<Calls> calls;
  uint64_t workspace = 0;
  do {
    calls.push_back(make(sets.emplace_back(), workspace));
  } while (sets.size() < 12 && sets[0].bytes * static_cast<int64_t>(sets.size()) < 200'000'000);
  const fvlm_call call = call_with(workspace);
  for (const Calls& each : calls) each(call);
  need(cudaStreamSynchronize(stream), "wait");
  const auto seconds_through = [&](std::size_t count) {
    const int rounds = std::max(1, static_cast<int>(40 / count));
    const double all = seconds_of([&] {
      for (int round = 0; round < rounds; ++round)
        for (std::size_t i = 0; i < count; ++i) calls[i](call);
    });
    return all / rounds / static_cast<double>(count);
  };
  const double seconds = seconds_through(calls.size()), again = seconds_through(1);
  const double speed = static_cast<double>(sets[0].bytes) / seconds;
  std::printf("%-40s %8.1f us %8.1f MB %6.0f GB/s %4.0f %% of copy; the same set again %7.1f us\n", name.c_str(),
              seconds * 1e6, static_cast<double>(sets[0].bytes) / 1e6, speed / 1e9, 100 * speed / copy_speed,
              again * 1e6);
  std::fflush(stdout);
  cudaFree(call.workspace);
}

} // namespace
