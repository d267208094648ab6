// sums_test.cpp: tests the gradients of parameters that the last arriving block adds up: with any workspace content,
// with concurrent calls, and repeatedly. All values are small integers, so every sum has exactly one correct result.
#include "common/testing/harness.h"

#include <cuda_runtime_api.h>
#include <memory>

namespace fvlm::testing::sums_test {
namespace {

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) { check_cuda(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1))); }
  ~DeviceMemory() { (void)cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const { check_cuda(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

struct Device {
  std::vector<std::unique_ptr<DeviceMemory>> memories;

  template <class Element>
  Tensor tensor(fvlm_dtype dtype, const std::vector<std::int64_t>& shape, const std::vector<Element>& values) {
    memories.push_back(std::make_unique<DeviceMemory>(values.size() * sizeof(Element)));
    check_cuda(
        cudaMemcpy(memories.back()->data(), values.data(), values.size() * sizeof(Element), cudaMemcpyHostToDevice));
    return {memories.back()->data(), dtype, shape};
  }
};

std::uint16_t bf16_of(int value) {
  const auto number = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

struct Shape {
  int32_t op;
  int64_t rows, width;
  bool sums_d_x = false;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int64_t rows : {1, 64, 65, 129, 1088, 2048, 2049, 9000}) {
    all.push_back({FVLM_OP_LAYERNORM, rows, 384});
    all.push_back({FVLM_OP_LAYERNORM, rows, 392, true});
    all.push_back({FVLM_OP_RMSNORM, rows, 576});
    all.push_back({FVLM_OP_LAYERSCALE_RESIDUAL, rows, 384});
  }
  for (const Shape& more : {Shape{FVLM_OP_RMSNORM, 2200, 2048}, Shape{FVLM_OP_LAYERNORM, 2100, 4096},
                            Shape{FVLM_OP_RMSNORM, 300, 8}, Shape{FVLM_OP_LAYERNORM, 200, 1000},
                            Shape{FVLM_OP_RMSNORM, 600, 2056}, Shape{FVLM_OP_LAYERNORM, 40, 1000, true},
                            Shape{FVLM_OP_BIAS_GELU, 5000, 1536}, Shape{FVLM_OP_BIAS_GELU, 70, 1536},
                            Shape{FVLM_OP_RMSNORM, 5000, 101}, Shape{FVLM_OP_LAYERSCALE_RESIDUAL, 5000, 37}})
    all.push_back(more);
  return all;
}

// A backward call and its expected sums.
class Work {
 public:
  explicit Work(const Shape& s) : shape_(s) {
    query_.struct_size = sizeof query_;
    query_.op = s.op;
    query_.device = test_device().device;
    query_.dtype = bf16, query_.gradient_dtype = f32;
    query_.options = FVLM_WITH_BACKWARD | (s.op == FVLM_OP_BIAS_GELU ? uint32_t{FVLM_WITH_BIAS} : 0u) |
                     (s.sums_d_x ? uint32_t{FVLM_WITH_COLUMN_SUMS} : 0u);
    query_.rows = s.rows, query_.width = s.width;
    const auto width = static_cast<std::size_t>(s.width), count = static_cast<std::size_t>(s.rows) * width;
    std::vector<std::uint16_t> x(count), d_y(count), d_sum(count);
    for (auto& sums : expected_) sums.resize(width);
    for (std::size_t i = 0, column = 0; i < count; ++i, column = column + 1 == width ? 0 : column + 1) {
      const int gradient = static_cast<int>((i * 2654435761u >> 7) % 5) - 2;
      // GELU's derivative is 1 there, to within float32 precision
      const int value = gelu() ? 64 : static_cast<int>((i * 2246822519u >> 9) % 3) - 1;
      const int other = static_cast<int>((i * 3266489917u >> 8) % 7) - 3;
      x[i] = bf16_of(value), d_y[i] = bf16_of(gradient), d_sum[i] = bf16_of(other);
      expected_[0][column] += static_cast<float>(gradient * (gelu() ? 1 : value));
      expected_[1][column] += static_cast<float>(gradient);
      expected_[2][column] += static_cast<float>(other);
    }
    x_ = device_.tensor(bf16, {s.rows, s.width}, x), d_y_ = device_.tensor(bf16, {s.rows, s.width}, d_y);
    d_x_ = device_.tensor(bf16, {s.rows, s.width}, x), d_sum_ = device_.tensor(bf16, {s.rows, s.width}, d_sum);
    // For column sums of d_x the weight is 0, so that d_x equals d_sum.
    const int weight = gelu() || s.sums_d_x ? 0 : 1;
    weight_ = device_.tensor(bf16, {s.width}, std::vector<std::uint16_t>(width, bf16_of(weight)));
    const std::vector<float> rows(static_cast<std::size_t>(s.rows));
    mean_ = device_.tensor(f32, {s.rows}, rows);
    inverse_ = device_.tensor(f32, {s.rows}, std::vector<float>(rows.size(), 1));
    for (Tensor& sums : sums_) sums = device_.tensor(f32, {s.width}, std::vector<float>(width));
  }

  uint64_t workspace(const Plugin<fvlm_kernels_v1>& plugin) const {
    fvlm_requirements needs{};
    needs.struct_size = sizeof needs;
    EXPECT_EQ(plugin->requirements(plugin.instance(), &query_, &needs, nullptr), FVLM_OK);
    return needs.backward_workspace;
  }

  void clear() {
    for (Tensor& sums : sums_)
      check_cuda(cudaMemset(sums.get()->data, 0, static_cast<std::size_t>(shape_.width) * sizeof(float)));
    times_ = 0;
  }

  // Accumulates into the sums.
  fvlm_status run(const Plugin<fvlm_kernels_v1>& plugin, const fvlm_call& call) {
    ++times_;
    if (shape_.op == FVLM_OP_LAYERSCALE_RESIDUAL) {
      const fvlm_layerscale_backward a{sizeof a, 1, x_.get(), weight_.get(), d_y_.get(), d_x_.get(), sums_[0].get()};
      return plugin->layerscale_backward(plugin.instance(), &call, &query_, &a);
    }
    if (gelu()) {
      const fvlm_bias_gelu_backward a{sizeof a, 1, x_.get(), weight_.get(), d_y_.get(), d_x_.get(), sums_[0].get()};
      return plugin->bias_gelu_backward(plugin.instance(), &call, &query_, &a);
    }
    fvlm_norm_backward a{};
    a.struct_size = sizeof a;
    a.accumulate = 1;
    a.d_y = d_y_.get(), a.s = x_.get(), a.weight = weight_.get(), a.d_x = d_x_.get();
    a.saved[0] = inverse_.get(), a.d_weight = sums_[0].get();
    if (shape_.op == FVLM_OP_RMSNORM) return plugin->rmsnorm_backward(plugin.instance(), &call, &query_, &a);
    a.saved[1] = mean_.get(), a.d_bias = sums_[1].get();
    if (shape_.sums_d_x) a.d_sum = d_sum_.get(), a.d_x_sums = sums_[2].get();
    return plugin->layernorm_backward(plugin.instance(), &call, &query_, &a);
  }

  // `more`: how often the call was executed in addition to run(), by replays.
  void expect_right(const std::string& what, int more = 0) {
    for (int which = 0; which < (shape_.sums_d_x ? 3 : shape_.op == FVLM_OP_LAYERNORM ? 2 : 1); ++which) {
      std::vector<float> got(expected_[which].size());
      check_cuda(cudaMemcpy(got.data(), sums_[which].get()->data, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
      int wrong = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float right = expected_[which][i] * static_cast<float>(times_ + more);
        if (got[i] != right && ++wrong == 1)
          ADD_FAILURE() << what << ": operation " << shape_.op << ", " << shape_.rows << " x " << shape_.width
                        << ", gradient " << which << "[" << i << "] is " << got[i] << " and should be " << right;
      }
      EXPECT_EQ(wrong, 0) << "elements of " << got.size();
    }
  }

 private:
  bool gelu() const { return shape_.op == FVLM_OP_BIAS_GELU; }

  Shape shape_;
  fvlm_kernels_query query_{};
  Device device_;
  Tensor x_, d_y_, d_sum_, d_x_, weight_, mean_, inverse_, sums_[3];
  std::vector<float> expected_[3];
  int times_ = 0;
};

// Calls of all shapes, with a stream and a workspace of their own.
struct Bench {
  std::vector<std::unique_ptr<Work>> works;
  uint64_t bytes = 0;
  std::unique_ptr<DeviceMemory> workspace;
  Stream stream;
  fvlm_call call{};

  explicit Bench(const Plugin<fvlm_kernels_v1>& plugin, const Host& host) {
    for (const Shape& shape : shapes()) {
      works.push_back(std::make_unique<Work>(shape));
      bytes = std::max(bytes, works.back()->workspace(plugin));
    }
    workspace = std::make_unique<DeviceMemory>(bytes);
    check_cuda(cudaMemset(workspace->data(), 0xa5, bytes));
    check_cuda(cudaDeviceSynchronize());
    call.struct_size = sizeof call;
    call.flags = FVLM_DETERMINISTIC;
    call.device = test_device().device;
    call.stream = stream.get();
    call.workspace = workspace->data();
    call.workspace_size = bytes;
    call.host = host.get();
  }
  void run_all(const Plugin<fvlm_kernels_v1>& plugin) {
    for (const auto& work : works) EXPECT_EQ(work->run(plugin, call), FVLM_OK);
  }
  void expect_right(const std::string& what, int more = 0) {
    stream.wait();
    for (const auto& work : works) work->expect_right(what, more);
  }
};

class Sums : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_device().missing.empty()) GTEST_SKIP() << test_device().missing;
  }
  Host host_;
};

TEST_F(Sums, are_right_whatever_the_workspace_held) {
  const Plugin<fvlm_kernels_v1> plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host_);
  Bench here(plugin, host_);
  for (const int sum_registers : {0x00, 0x01, 0x5e, 0x7f, 0x80, 0xff}) {
    for (const auto& work : here.works) {
      check_cuda(cudaMemsetAsync(here.workspace->data(), sum_registers, here.bytes, here.stream.get()));
      EXPECT_EQ(work->run(plugin, here.call), FVLM_OK);
    }
    here.expect_right("bytes of " + std::to_string(sum_registers));
  }
}

TEST_F(Sums, are_right_for_shapes_in_turn_through_one_workspace) {
  const Plugin<fvlm_kernels_v1> plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host_);
  Bench here(plugin, host_);
  for (int round = 0; round < 100; ++round) here.run_all(plugin);
  here.expect_right("a hundred rounds");
}

TEST_F(Sums, are_right_on_two_streams_of_one_instance_at_once) {
  const Plugin<fvlm_kernels_v1> plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host_);
  Bench one(plugin, host_), other(plugin, host_);
  for (int round = 0; round < 30; ++round)
    for (std::size_t i = 0; i < one.works.size(); ++i) {
      EXPECT_EQ(one.works[i]->run(plugin, one.call), FVLM_OK);
      EXPECT_EQ(other.works[(i + 1) % one.works.size()]->run(plugin, other.call), FVLM_OK);
    }
  one.expect_right("one stream"), other.expect_right("the other");
}

TEST_F(Sums, are_right_of_two_instances_on_two_threads) {
  const auto rounds = [&] {
    const Plugin<fvlm_kernels_v1> plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host_);
    Bench here(plugin, host_);
    for (int round = 0; round < 30; ++round) here.run_all(plugin);
    here.expect_right("a thread");
  };
  std::thread other(rounds);
  rounds();
  other.join();
}

TEST_F(Sums, are_right_of_every_replay_of_a_recording) {
  const Plugin<fvlm_kernels_v1> plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host_);
  Bench here(plugin, host_);
  here.run_all(plugin);
  here.stream.wait();
  for (const auto& work : here.works) work->clear();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  here.call.flags |= FVLM_CAPTURING;
  check_cuda(cudaStreamBeginCapture(here.stream.get(), cudaStreamCaptureModeThreadLocal));
  here.run_all(plugin);
  check_cuda(cudaStreamEndCapture(here.stream.get(), &graph));
  check_cuda(cudaGraphInstantiate(&executable, graph, 0));
  std::size_t nodes = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_LE(nodes, here.works.size() + 8) << "one launch each, but for a norm of odd rows and sums of few rows' d_x";
  for (int replay = 0; replay < 100; ++replay) check_cuda(cudaGraphLaunch(executable, here.stream.get()));
  here.expect_right("a hundred replays", 99);
  check_cuda(cudaGraphExecDestroy(executable));
  check_cuda(cudaGraphDestroy(graph));
}

} // namespace
} // namespace fvlm::testing::sums_test
