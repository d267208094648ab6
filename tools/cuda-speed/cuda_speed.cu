// cuda_speed: bytes a second of each operation of a kernels and an optimizer plugin, at the sizes of fVLM's models,
// beside the speed of a copy in the same run.
//
//   cuda-speed kernels-cuda.so|- optimizer-cuda.so|- [kernels-cublaslt.so|- [TEXT]]
//
// TEXT: only those whose name contains it. Of linears, the weight gradient without and with the bias's.
//
// Each call is recorded as a part of a graph that goes through so many sets of buffers that none of them stays in the
// L2, and, for the time alone, through one set; the median of five replays counts. Bytes are those of the operation:
// each input read, each output written once.
#include "measure.cuh"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

class KernelsSpeed {
 public:
  explicit KernelsSpeed(const char* path) : library_(path, FVLM_KERNELS_KIND) {}

  void norm(int32_t op, int64_t rows, int64_t width, bool residual) {
    const std::string shape =
        name(op == FVLM_OP_RMSNORM ? "rmsnorm" : "layernorm", rows, width, residual ? "+res" : "");
    const bool rms = op == FVLM_OP_RMSNORM;
    auto query = query_of(op, rows, width);
    if (residual) query.options |= FVLM_WITH_RESIDUAL;
    const auto& t = *library_.table;
    measure(shape + " forward", [&](Set& s, uint64_t& workspace) -> Calls {
      fvlm_norm_forward f{};
      f.struct_size = sizeof f;
      f.x = s.add(bfloat16, {rows, width}), f.weight = s.add(bfloat16, {width});
      if (residual) f.residual = s.add(bfloat16, {rows, width}), f.sum = s.add(bfloat16, {rows, width});
      if (!rms) f.bias = s.add(bfloat16, {width});
      f.y = s.add(bfloat16, {rows, width});
      f.saved[0] = s.add(float32, {rows});
      if (!rms) f.saved[1] = s.add(float32, {rows});
      ask(query, workspace, false);
      return [=](const fvlm_call& call) {
        need((rms ? t.rmsnorm_forward : t.layernorm_forward)(library_.instance, &call, &query, &f), "forward");
      };
    });
    measure(shape + " backward", [&](Set& s, uint64_t& workspace) -> Calls {
      fvlm_norm_backward b{};
      b.struct_size = sizeof b;
      b.d_y = s.add(bfloat16, {rows, width}), b.s = s.add(bfloat16, {rows, width});
      if (residual) b.d_sum = s.add(bfloat16, {rows, width});
      b.weight = s.add(bfloat16, {width}), b.d_weight = s.add(bfloat16, {width});
      b.saved[0] = s.add(float32, {rows});
      if (!rms) b.saved[1] = s.add(float32, {rows}), b.d_bias = s.add(bfloat16, {width});
      b.d_x = s.add(bfloat16, {rows, width});
      ask(query, workspace, true);
      return [=](const fvlm_call& call) {
        need((rms ? t.rmsnorm_backward : t.layernorm_backward)(library_.instance, &call, &query, &b), "backward");
      };
    });
  }

  void rope(int64_t rows, int heads, int64_t stride) {
    auto query = query_of(FVLM_OP_ROPE, rows, heads * 64);
    query.heads = heads, query.head_dim = query.rotary_dim = 64, query.rope_theta = 1e5f;
    measure(name("rope in place", rows, heads * 64, ""), [&](Set& s, uint64_t&) -> Calls {
      fvlm_rope_apply a{};
      a.struct_size = sizeof a;
      a.x = a.out = s.add(bfloat16, {rows, heads, 64}, 2, stride);
      a.positions = s.add(int32, {rows});
      return [=](const fvlm_call& call) { need(library_.table->rope(library_.instance, &call, &query, &a), "rope"); };
    });
  }

  void swiglu(int64_t rows, int64_t width) {
    const auto query = query_of(FVLM_OP_SWIGLU, rows, width);
    const auto& t = *library_.table;
    measure(name("swiglu", rows, width, "") + " forward", [&](Set& s, uint64_t&) -> Calls {
      fvlm_swiglu_forward f{};
      f.struct_size = sizeof f;
      f.gate = s.add(bfloat16, {rows, width}), f.up = s.add(bfloat16, {rows, width});
      f.y = s.add(bfloat16, {rows, width});
      return [=, &t](const fvlm_call& c) { need(t.swiglu_forward(library_.instance, &c, &query, &f), "forward"); };
    });
    measure(name("swiglu", rows, width, "") + " backward", [&](Set& s, uint64_t&) -> Calls {
      fvlm_swiglu_backward b{};
      b.struct_size = sizeof b;
      b.gate = s.add(bfloat16, {rows, width}), b.up = s.add(bfloat16, {rows, width});
      b.d_y = s.add(bfloat16, {rows, width});
      b.d_gate = s.add(bfloat16, {rows, width}), b.d_up = s.add(bfloat16, {rows, width});
      return [=, &t](const fvlm_call& c) { need(t.swiglu_backward(library_.instance, &c, &query, &b), "backward"); };
    });
  }

  void bias_gelu(int64_t rows, int64_t width) {
    auto query = query_of(FVLM_OP_BIAS_GELU, rows, width);
    query.options |= FVLM_WITH_BIAS;
    const auto& t = *library_.table;
    measure(name("bias_gelu", rows, width, "") + " forward", [&](Set& s, uint64_t&) -> Calls {
      fvlm_bias_gelu_forward f{};
      f.struct_size = sizeof f;
      f.x = s.add(bfloat16, {rows, width}), f.bias = s.add(bfloat16, {width}), f.y = s.add(bfloat16, {rows, width});
      return [=, &t](const fvlm_call& c) { need(t.bias_gelu_forward(library_.instance, &c, &query, &f), "forward"); };
    });
    measure(name("bias_gelu", rows, width, "") + " backward", [&](Set& s, uint64_t& workspace) -> Calls {
      fvlm_bias_gelu_backward b{};
      b.struct_size = sizeof b;
      b.x = s.add(bfloat16, {rows, width}), b.bias = s.add(bfloat16, {width}), b.d_y = s.add(bfloat16, {rows, width});
      b.d_x = s.add(bfloat16, {rows, width}), b.d_bias = s.add(bfloat16, {width});
      ask(query, workspace, true);
      return [=, &t](const fvlm_call& c) { need(t.bias_gelu_backward(library_.instance, &c, &query, &b), "backward"); };
    });
  }

  void weight_gradient(int64_t rows, int64_t inner, int64_t width) {
    auto query = query_of(FVLM_OP_LINEAR, rows, width);
    query.options |= FVLM_WITH_BIAS;
    query.inner = inner;
    const auto& t = *library_.table;
    for (const bool bias : {false, true})
      measure(name("weight gradient", rows, inner, "") + " -> " + std::to_string(width) + (bias ? " bias" : ""),
              [&](Set& s, uint64_t& workspace) -> Calls {
                fvlm_linear_weight_gradient b{};
                b.struct_size = sizeof b;
                b.d_y = s.add(bfloat16, {rows, width}), b.x = s.add(bfloat16, {rows, inner});
                b.d_weight = s.add(bfloat16, {width, inner});
                if (bias) b.d_bias = s.add(bfloat16, {width});
                ask(query, workspace, true);
                prepare(query, workspace);
                return [=, &t](const fvlm_call& c) {
                  need(t.linear_weight_gradient(library_.instance, &c, &query, &b), "weight gradient");
                };
              });
  }

  void layerscale(int64_t rows, int64_t width) {
    const auto query = query_of(FVLM_OP_LAYERSCALE_RESIDUAL, rows, width);
    const auto& t = *library_.table;
    measure(name("layerscale", rows, width, "") + " forward", [&](Set& s, uint64_t&) -> Calls {
      fvlm_layerscale_forward f{};
      f.struct_size = sizeof f;
      f.x = s.add(bfloat16, {rows, width}), f.scale = s.add(bfloat16, {width});
      f.residual = s.add(bfloat16, {rows, width}), f.y = s.add(bfloat16, {rows, width});
      return [=, &t](const fvlm_call& c) { need(t.layerscale_forward(library_.instance, &c, &query, &f), "forward"); };
    });
    measure(name("layerscale", rows, width, "") + " backward", [&](Set& s, uint64_t& workspace) -> Calls {
      fvlm_layerscale_backward b{};
      b.struct_size = sizeof b;
      b.x = s.add(bfloat16, {rows, width}), b.scale = s.add(bfloat16, {width}), b.d_y = s.add(bfloat16, {rows, width});
      b.d_x = s.add(bfloat16, {rows, width}), b.d_scale = s.add(bfloat16, {width});
      ask(query, workspace, true);
      return
          [=, &t](const fvlm_call& c) { need(t.layerscale_backward(library_.instance, &c, &query, &b), "backward"); };
    });
  }

 private:
  static fvlm_kernels_query query_of(int32_t op, int64_t rows, int64_t width) {
    fvlm_kernels_query query{};
    query.struct_size = sizeof query;
    query.op = op;
    query.device = {FVLM_CUDA, 0};
    query.dtype = query.gradient_dtype = bfloat16;
    query.options = FVLM_WITH_BACKWARD;
    query.rows = rows;
    query.width = width;
    query.epsilon = 1e-6f;
    return query;
  }
  static std::string name(const char* op, int64_t rows, int64_t width, const char* more) {
    return std::string(op) + more + " " + std::to_string(rows) + " x " + std::to_string(width);
  }
  void ask(const fvlm_kernels_query& query, uint64_t& workspace, bool backward) const {
    fvlm_requirements wanted{};
    wanted.struct_size = sizeof wanted;
    need(library_.table->requirements(library_.instance, &query, &wanted, &sink), "requirements");
    workspace = backward ? wanted.backward_workspace : wanted.forward_workspace;
  }

  void prepare(const fvlm_kernels_query& query, uint64_t workspace) const {
    const fvlm_call call = call_with(workspace);
    need(library_.table->prepare(library_.instance, &call, &query), "prepare");
    need(cudaStreamSynchronize(stream), "wait");
    cudaFree(call.workspace);
  }

  Library<fvlm_kernels_v1> library_;
};

// One arena of matrices of 576 x 1536 with vectors between them, as a model's.
void adamw(const char* path, int64_t millions, fvlm_dtype copy, fvlm_dtype moment) {
  const Library<fvlm_optimizer_v1> library(path, FVLM_OPTIMIZER_KIND("adamw"));
  std::vector<fvlm_optimizer_segment> segments;
  int64_t elements = 0;
  while (elements < millions * 1'000'000) {
    const int64_t rows = segments.size() % 3 == 2 ? 1 : 1536;
    segments.push_back({elements, rows, 576, static_cast<int64_t>(segments.size() % 2)});
    elements += rows * 576;
  }
  fvlm_optimizer_query query{};
  query.struct_size = sizeof query;
  query.device = {FVLM_CUDA, 0};
  query.gradient_dtype = bfloat16, query.parameter_dtype = copy, query.state_dtype = moment;
  query.elements = elements, query.segment_count = static_cast<int64_t>(segments.size()), query.group_count = 2;
  query.segments = segments.data();
  char name[128];
  std::snprintf(name, sizeof name, "adamw %lldM, copy %s, m %s", static_cast<long long>(millions), name_of(copy),
                name_of(moment));
  measure(name, [&](Set& s, uint64_t&) -> Calls {
    fvlm_optimizer_step a{};
    a.struct_size = sizeof a;
    a.master = s.add(float32, {elements}, 2);
    if (copy != float32) a.parameter = s.add(copy, {elements});
    a.gradient = s.add(bfloat16, {elements});
    a.state[0] = s.add(moment, {elements}, 2), a.state[1] = s.add(float32, {elements}, 2);
    need(cudaMemset(a.state[1]->data, 0, static_cast<std::size_t>(elements) * 4), "clear");
    a.segments = s.add(int64, {query.segment_count, 4}), a.hyper = s.add(float32, {2, 5});
    a.step = s.add(int64, {1}), a.scale = s.add(float32, {1}), a.skip = s.add(int32, {1});
    const float hyper[] = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f}, scale = 1;
    const int64_t step = 1;
    need(cudaMemcpy(a.segments->data, segments.data(), segments.size() * sizeof segments[0], cudaMemcpyHostToDevice),
         "segments");
    need(cudaMemcpy(a.hyper->data, hyper, sizeof hyper, cudaMemcpyHostToDevice), "hyper");
    need(cudaMemcpy(a.scale->data, &scale, sizeof scale, cudaMemcpyHostToDevice), "scale");
    need(cudaMemcpy(a.step->data, &step, sizeof step, cudaMemcpyHostToDevice), "step");
    return [=, &library, &query](const fvlm_call& call) {
      need(library.table->step(library.instance, &call, &query, &a), "step");
    };
  });
}

// The matrices of fVLM-135M's layers. Bytes are those of one pass; the products move and compute much more.
void muon(const char* path, fvlm_dtype copy) {
  const Library<fvlm_optimizer_v1> library(path, FVLM_OPTIMIZER_KIND("muon"));
  std::vector<fvlm_optimizer_segment> segments;
  int64_t elements = 0;
  const auto add = [&](int64_t times, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < times; ++i, elements += rows * cols) segments.push_back({elements, rows, cols, 0});
  };
  for (int layer = 0; layer < 30; ++layer) add(2, 576, 576), add(2, 192, 576), add(2, 1536, 576), add(1, 576, 1536);
  for (int layer = 0; layer < 12; ++layer) add(1, 1152, 384), add(1, 384, 384), add(1, 1536, 384), add(1, 384, 1536);
  fvlm_optimizer_query query{};
  query.struct_size = sizeof query;
  query.device = {FVLM_CUDA, 0};
  query.gradient_dtype = bfloat16, query.parameter_dtype = copy, query.state_dtype = float32;
  query.elements = elements, query.segment_count = static_cast<int64_t>(segments.size()), query.group_count = 1;
  query.segments = segments.data();
  fvlm_requirements wanted{};
  wanted.struct_size = sizeof wanted;
  need(library.table->requirements(library.instance, &query, &wanted, &sink), "requirements");
  char name[128];
  std::snprintf(name, sizeof name, "muon %lldM, copy %s, %.0f MB inside", static_cast<long long>(elements / 1'000'000),
                name_of(copy), static_cast<double>(wanted.forward_workspace) / 1e6);
  measure(name, [&](Set& s, uint64_t& workspace) -> Calls {
    workspace = wanted.forward_workspace;
    fvlm_optimizer_step a{};
    a.struct_size = sizeof a;
    a.master = s.add(float32, {elements}, 2);
    if (copy != float32) a.parameter = s.add(copy, {elements});
    a.gradient = s.add(bfloat16, {elements});
    a.state[0] = s.add(float32, {elements}, 2);
    a.segments = s.add(int64, {query.segment_count, 4}), a.hyper = s.add(float32, {1, 5});
    a.step = s.add(int64, {1}), a.scale = s.add(float32, {1}), a.skip = s.add(int32, {1});
    const float hyper[] = {1e-3f, 0.95f, 1, 0.1f, 1e-7f}, scale = 1;
    need(cudaMemcpy(a.hyper->data, hyper, sizeof hyper, cudaMemcpyHostToDevice), "hyper");
    need(cudaMemcpy(a.scale->data, &scale, sizeof scale, cudaMemcpyHostToDevice), "scale");
    return [=, &library, &query](const fvlm_call& call) {
      need(library.table->step(library.instance, &call, &query, &a), "step");
    };
  });
}

__global__ void copy_packs(const uint4* from, uint4* to, int64_t count) {
  const int64_t at = item_index();
  if (at < count) to[at] = from[at];
}

// The better of the driver's copy and a kernel's.
void measure_copy() {
  constexpr std::size_t bytes = 1 << 30;
  void *from, *to;
  need(cudaMalloc(&from, bytes), "memory");
  need(cudaMalloc(&to, bytes), "memory");
  fill<<<1024, 256>>>(static_cast<std::uint32_t*>(from), bytes / 4, bfloat16);
  double speeds[2] = {};
  for (int round = 0; round < 2; ++round) { // the first also brings the clocks up
    const double driver = seconds_of([&] {
      for (int i = 0; i < 10; ++i) need(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
    });
    const double kernel = seconds_of([&] {
      for (int i = 0; i < 10; ++i)
        copy_packs<<<bytes / 16 / 256, 256, 0, stream>>>(static_cast<uint4*>(from), static_cast<uint4*>(to),
                                                         bytes / 16);
    });
    speeds[0] = 20.0 * bytes / driver, speeds[1] = 20.0 * bytes / kernel;
  }
  copy_speed = std::max(speeds[0], speeds[1]);
  std::printf("copy of 1 GiB: %.0f GB/s by the driver, %.0f GB/s by a kernel, read and written\n", speeds[0] / 1e9,
              speeds[1] / 1e9);
  cudaFree(from);
  cudaFree(to);
}

void measure_kernels(const char* path) {
  KernelsSpeed kernels(path);
  for (const int64_t batch : {8, 64}) {
    const int64_t tower = batch * 8 * 257, decoder = batch * (128 + 8), coarse = batch * 8;
    kernels.norm(FVLM_OP_LAYERNORM, tower, 384, false);
    kernels.layerscale(tower, 384);
    kernels.bias_gelu(tower, 1536);
    kernels.norm(FVLM_OP_RMSNORM, decoder, 576, true);
    kernels.rope(decoder, 12, 960);
    kernels.swiglu(decoder, 1536);
    if (batch == 64) continue;
    kernels.norm(FVLM_OP_LAYERNORM, coarse, 384, false);
    kernels.layerscale(coarse, 384);
    kernels.norm(FVLM_OP_RMSNORM, coarse, 576, true);
    kernels.swiglu(coarse, 1536);
  }
  kernels.norm(FVLM_OP_RMSNORM, 16384, 2048, true);
  kernels.rope(16384, 32, 2048);
  kernels.swiglu(16384, 8192);
  kernels.norm(FVLM_OP_RMSNORM, 8192, 8192, false);
}

void measure_linears(const char* path) {
  KernelsSpeed kernels(path);
  for (const int64_t rows : {64, 8 * 8 * 257, 64 * 8 * 257}) {
    kernels.weight_gradient(rows, 384, 1152);
    kernels.weight_gradient(rows, 384, 384);
    kernels.weight_gradient(rows, 384, 1536);
    kernels.weight_gradient(rows, 1536, 384);
  }
}

} // namespace

int main(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "usage: cuda-speed kernels-cuda.so|- optimizer-cuda.so|- [kernels-cublaslt.so|- [TEXT]]\n");
    return 2;
  }
  if (count > 4) only = words[4];
  need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  measure_copy();
  if (std::strcmp(words[1], "-") != 0) measure_kernels(words[1]);
  if (std::strcmp(words[2], "-") != 0) {
    adamw(words[2], 135, bfloat16, float32);
    adamw(words[2], 135, bfloat16, bfloat16);
    adamw(words[2], 135, float32, float32);
    muon(words[2], bfloat16);
  }
  if (count > 3 && std::strcmp(words[3], "-") != 0) measure_linears(words[3]);
  return 0;
}
