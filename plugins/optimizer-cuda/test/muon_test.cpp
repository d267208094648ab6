// muon_test.cpp: compares optimizer-cuda's Muon on a GPU with optimizer-muon on the CPU.
#include "compare_with_cpu.h"

#include <cuda_runtime_api.h>

namespace fvlm::testing {
namespace {

constexpr float lr = 0.02f;

const std::vector<std::vector<float>> groups = {{lr, 0.95f, 1, 0.1f, 1e-7f}, {lr, 0.8f, 0, 0.3f, 1e-7f}};

// optimizer-muon has more hyperparameters.
std::vector<std::vector<float>> groups_on_cpu() {
  auto longer = groups;
  for (auto& group : longer) group.insert(group.end(), {5, 3.4445f, -4.7750f, 2.0315f, 0});
  return longer;
}

// More matrices of one padded shape than fit into a batch; wide, tall and square ones, one with a row less than a
// multiple of 8, an empty one.
ArenaShape many_matrices() {
  ArenaShape shape;
  const auto add = [&](std::int64_t rows, std::int64_t cols) {
    shape.segments.push_back({shape.elements, rows, cols, static_cast<std::int64_t>(shape.segments.size() % 2)});
    shape.elements += rows * cols + static_cast<std::int64_t>(shape.segments.size() % 3);
  };
  for (std::int64_t i = 0; i < 150; ++i) add(2 + i % 7, 9 + i % 8);
  for (const auto& [rows, cols] : {std::pair{33, 65}, {65, 33}, {64, 64}, {5, 1}, {2, 0}, {127, 576}, {576, 192}})
    add(rows, cols);
  shape.groups = 2;
  return shape;
}

class MuonCuda : public ComparedWithCpu {
 protected:
  MuonCuda() : ComparedWithCpu("fvlm.optimizer/1:muon") {}

  // Runs two steps on both.
  void expect_near_the_cpu(const ArenaShape& shape, float tolerance) {
    Arena got(*plugin, shape, groups);
    got.scale = 0.5f;
    for (got.step = 1; got.step <= 2; ++got.step) ASSERT_EQ(got.run(*plugin, host), FVLM_OK) << got.error;
    Arena expected(*reference, shape, groups_on_cpu());
    expected.scale = 0.5f;
    for (expected.step = 1; expected.step <= 2; ++expected.step) ASSERT_NO_FATAL_FAILURE(step_on_cpu(expected));
    for (std::size_t i = 0; i < got.master.size(); ++i) {
      ASSERT_NEAR(got.master[i], expected.master[i], tolerance) << "master, element " << i;
      ASSERT_NEAR(got.states[0].get(static_cast<std::int64_t>(i)), expected.states[0].get(static_cast<std::int64_t>(i)),
                  1e-6)
          << "momentum, element " << i;
    }
  }
};

TEST_F(MuonCuda, in_float32_steps_many_matrices_as_the_cpu_does) {
  expect_near_the_cpu(many_matrices(), 1e-4f * lr);
}

// Over 30 random draws of these shapes, rounded the same way on the CPU, the largest difference was 0.06 of a step, in
// a 2 x 15 matrix.
TEST_F(MuonCuda, in_bfloat16_steps_them_nearly_so) {
  ArenaShape shape = many_matrices();
  shape.gradient = shape.parameter = bf16;
  expect_near_the_cpu(shape, 0.2f * lr);
}

TEST_F(MuonCuda, refuses_vectors_and_the_cpu_with_a_reason) {
  Arena arena(*plugin, many_matrices(), groups);
  fvlm_optimizer_query query = arena.query();
  query.device.type = FVLM_CPU;
  EXPECT_NE(std::string(support_of(*plugin, query).reason).find("CUDA"), std::string::npos);
  arena.shape.segments[3].rows = 1;
  query = arena.query();
  EXPECT_NE(std::string(support_of(*plugin, query).reason).find("segment 3 is a vector"), std::string::npos);
}

} // namespace
} // namespace fvlm::testing
