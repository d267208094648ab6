// adamw_test.cpp: compares optimizer-cuda's AdamW on a GPU with optimizer-adamw on the CPU, bit by bit.
#include "compare_with_cpu.h"

#include <cuda_runtime_api.h>

namespace fvlm::testing {
namespace {

const std::vector<std::vector<float>> two_groups = {{1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f},
                                                    {1e-2f, 0.8f, 0.95f, 1e-6f, 0.1f}};

// Slices that start and end anywhere, some across several blocks' ranges; a vector, a single element, an empty one.
ArenaShape ragged_shape() {
  ArenaShape shape;
  shape.segments = {{3, 1, 7, 0},    {16, 33, 65, 1},     {2200, 1, 1, 0},
                    {2201, 1, 0, 0}, {2210, 301, 173, 0}, {54285, 1, 16384, 1}};
  shape.groups = 2;
  shape.elements = 54285 + 16384 + 5;
  return shape;
}

void check_cuda(cudaError_t status) {
  ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
}

class AdamwCuda : public ComparedWithCpu {
 protected:
  AdamwCuda() : ComparedWithCpu("fvlm.optimizer/1:adamw") {}

  Arena make(const ArenaShape& shape) const { return Arena(*plugin, shape, two_groups); }

  static void expect_equal(const Arena& got, const Arena& expected) {
    if (got.bits() == expected.bits()) return;
    for (std::size_t i = 0; i < got.master.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      ASSERT_EQ(got.master[i], expected.master[i]) << "master, element " << i;
      ASSERT_EQ(got.parameter.get(at), expected.parameter.get(at)) << "parameter, element " << i;
      ASSERT_EQ(got.states[0].get(at), expected.states[0].get(at)) << "m, element " << i;
      ASSERT_EQ(got.states[1].get(at), expected.states[1].get(at)) << "v, element " << i;
    }
    FAIL() << "a sign of zero or a NaN's bits differ";
  }
};

TEST_F(AdamwCuda, has_the_bits_of_the_cpu_in_every_combination_of_types) {
  for (const fvlm_dtype gradient : {f32, bf16, f16})
    for (const fvlm_dtype parameter : {f32, bf16, f16})
      for (const fvlm_dtype state : {f32, bf16}) {
        SCOPED_TRACE(std::to_string(gradient.bits) + " " + std::to_string(gradient.code) + ", " +
                     std::to_string(parameter.bits) + " " + std::to_string(parameter.code) + ", " +
                     std::to_string(state.bits));
        ArenaShape shape = ragged_shape();
        shape.gradient = gradient, shape.parameter = parameter, shape.state = state;
        Arena arena = make(shape), expected = arena;
        arena.scale = expected.scale = 0.5f;
        for (const std::int64_t step : {1, 2, 1000}) {
          arena.step = expected.step = step;
          ASSERT_EQ(arena.run(*plugin, host), FVLM_OK) << arena.error;
          step_on_cpu(expected);
          ASSERT_NO_FATAL_FAILURE(expect_equal(arena, expected)) << "step " << step;
        }
      }
}

TEST_F(AdamwCuda, gaps_between_segments_are_untouched) {
  ArenaShape shape = ragged_shape();
  shape.parameter = bf16;
  Arena arena = make(shape);
  expect_gaps_untouched(arena, *plugin, host);
}

TEST_F(AdamwCuda, takes_more_segments_than_a_block_looks_at_at_once_in_any_order) {
  ArenaShape shape;
  shape.groups = 2;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t size = 1 + i * 37 % 101;
    shape.segments.insert(i % 3 ? shape.segments.begin() : shape.segments.end(), {shape.elements, 1, size, i % 2});
    shape.elements += size + i % 4;
  }
  shape.parameter = bf16;
  Arena arena = make(shape), expected = arena;
  ASSERT_EQ(arena.run(*plugin, host), FVLM_OK) << arena.error;
  step_on_cpu(expected);
  expect_equal(arena, expected);
}

TEST_F(AdamwCuda, a_replayed_graph_sees_new_steps_hyperparameters_scales_and_skips) {
  Arena arena = make(ragged_shape()), expected = arena;
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto replay_thrice = [&](fvlm_call& call, const std::function<fvlm_status()>& step) {
    call.stream = stream;
    call.flags |= FVLM_CAPTURING;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    const fvlm_status status = step();
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 3; ++replay) {
      for (Arena* each : {&arena, &expected}) {
        each->step = 7 + replay;
        each->scale = 1.0f / static_cast<float>(1 + replay);
        each->hyper[0] = 0.01f * static_cast<float>(1 + replay);
        each->skip = replay == 1;
      }
      check_cuda(cudaGraphLaunch(executable, stream));
      check_cuda(cudaStreamSynchronize(stream));
      step_on_cpu(expected);
      expect_equal(arena, expected);
    }
    check_cuda(cudaGraphExecDestroy(executable));
    check_cuda(cudaGraphDestroy(graph));
    return status;
  };
  EXPECT_EQ(arena.run(*plugin, host, replay_thrice), FVLM_OK) << arena.error;
  check_cuda(cudaStreamDestroy(stream));
}

TEST_F(AdamwCuda, refuses_what_it_cannot_do_with_a_reason) {
  Arena arena = make(ragged_shape());
  fvlm_optimizer_query query = arena.query();
  query.gradient_dtype = i32;
  EXPECT_NE(std::string(support_of(*plugin, query).reason).find("gradients in int32"), std::string::npos);
  query = arena.query();
  query.device.type = FVLM_CPU;
  EXPECT_NE(std::string(support_of(*plugin, query).reason).find("CUDA"), std::string::npos);
  arena.shape.segments[0].offset = arena.shape.elements;
  EXPECT_EQ(arena.run(*plugin, host), FVLM_ERROR_ARGUMENT);
  EXPECT_NE(arena.error.find("segment 0"), std::string::npos) << arena.error;
}

} // namespace
} // namespace fvlm::testing
