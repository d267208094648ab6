// Gradients of parameters are computed on the side stream (device/runtime.h). A fake device delays them as long as that
// allows; they have to equal those of a single stream.
#include "device/runtime.h"
#include "tiny.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <deque>
#include <ostream>

using namespace fvlm;
using namespace fvlm::model;
using at::Tensor;

namespace {

class LateRuntime : public device::Runtime {
 public:
  LateRuntime() { device::use_runtime(this); }
  LateRuntime(const LateRuntime&) = delete;
  LateRuntime& operator=(const LateRuntime&) = delete;
  ~LateRuntime() override { device::use_runtime(nullptr); }

  int besides = 0;

  void run_on_side_stream(std::function<void()> work, int64_t /*bytes*/) override {
    ++besides;
    waiting_.push_back(std::move(work));
  }
  void join_side_stream() noexcept override {
    for (; !waiting_.empty(); waiting_.pop_front()) waiting_.front()();
  }

  bool is_capturing() const override { return false; }
  std::unique_ptr<device::CapturedGraph> capture(const std::function<void()>& /*work*/) override { return {}; }
  bool drop_graphs() override { return false; }
  std::shared_ptr<device::Event> record_event() override { return {}; }
  std::shared_ptr<device::Event> copy_on_prefetch_stream(const device::Event& /*after*/,
                                                         const std::function<void()>& /*copies*/) override {
    return {};
  }
  std::shared_ptr<device::Event> run_on_communication_stream(const std::function<void(void*)>& work) override {
    work(nullptr);
    return record_event();
  }
  void wait_event(const device::Event& /*mark*/) override {}
  void synchronize() override {}
  void enter_thread() override {}
  std::vector<device::Activity> profile(const std::function<void()>& /*work*/) override { return {}; }
  uint64_t now() const override { return 0; }

 private:
  std::deque<std::function<void()>> waiting_;
};

struct Objective {
  const char* name;
  bool prefers, follows_teacher;

  friend void PrintTo(const Objective& objective, std::ostream* out) { *out << objective.name; }
};

class SideStream : public testing::TestWithParam<std::tuple<Objective, bool>> {
 protected:
  // In the order of a training step's passes.
  static std::map<std::string, Tensor> gradients(Tiny& tiny, Tiny& teacher, const Pack& pack,
                                                 const Objective& objective) {
    ops::Tape tape;
    auto& operations = *tiny.operations;
    const auto visual = tiny.model.encode(tape, operations, pack, "coarse_fine");
    const auto hidden = tiny.model.decode(tape, operations, visual.tokens, pack, visual.next);
    const Tensor weights = tiny.ones(pack) / 10;
    if (objective.prefers) {
      const auto policy = log_probabilities(tape, operations, tiny.model, hidden, pack);
      dpo_loss(policy, at::zeros_like(policy.sum), pack, 0.1, at::full({}, 1.0, at::kDouble));
    } else {
      next_token_loss(tape, operations, tiny.model, hidden, pack, weights);
    }
    if (objective.follows_teacher) {
      ops::Tape none(ops::Tape::Mode::forward_only);
      const auto teacher_visual = teacher.model.encode(none, operations, pack, "coarse_fine");
      const Tensor teacher_hidden = teacher.model.decode(none, operations, teacher_visual.tokens, pack).data;
      const auto theirs =
          log_softmax_at_temperature(operations, teacher.model, teacher_hidden.index_select(0, pack.labels.rows), 1);
      kl_divergence(tape, operations, tiny.model, hidden, pack.labels.rows, theirs.to(at::kDouble), 1, weights);
    }
    tape.backward();
    return tiny.take_gradients();
  }
};

TEST_P(SideStream, GradientsEqualThoseOfOneStream) {
  const auto& [objective, tied] = GetParam();
  ModelConfig config = tiny_config();
  config.decoder.tie_word_embeddings = tied;
  Tiny tiny(config), teacher(config);
  for (auto& parameter : teacher.model.parameters().all()) parameter.value.mul_(1.1);
  Dice dice(7);
  const Pack pack = tiny.pack({random_sample(dice, 3, 12, 2), random_sample(dice, 2, 9, 2)});
  const auto expected = gradients(tiny, teacher, pack, objective);
  LateRuntime late;
  const auto found = gradients(tiny, teacher, pack, objective);
  EXPECT_GT(late.besides, 10);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, gradient] : expected) ops::expect_close(found.at(name), gradient, 1e-12, name);
}

// How many gradients of an 8 x 8 weight that are computed for so many rows go to the side stream.
int on_side_stream(int64_t rows) {
  Tiny tiny;
  auto parameter = std::make_shared<ops::Parameter>();
  parameter->value = ops::random({8, 8}, 1);
  parameter->gradient = at::zeros({8, 8}, at::kDouble);
  LateRuntime late;
  ops::Tape tape;
  const ops::Value x(at::ones({rows, 8}, at::kDouble)), y = tiny.operations->linear(tape, x, ops::Weight(parameter));
  y.gradient->add(at::ones({rows, 8}, at::kDouble));
  tape.backward();
  ops::expect_close(parameter->gradient, at::full({8, 8}, static_cast<double>(rows), at::kDouble), 1e-12, "gradient");
  return late.besides;
}

TEST(SideStreamOf, LargeProductsBoundByReadsStayInOrder) {
  EXPECT_EQ(on_side_stream(int64_t{1} << 19), 0); // operands of 64 MiB
  EXPECT_EQ(on_side_stream((int64_t{1} << 19) - 1), 1);
}

INSTANTIATE_TEST_SUITE_P(
    steps, SideStream,
    testing::Combine(testing::Values(Objective{"next_token", false, false}, Objective{"next_token_and_kl", false, true},
                                     Objective{"dpo", true, false}, Objective{"dpo_and_kl", true, true}),
                     testing::Bool()),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "_tied" : "_own_head");
    });

} // namespace
