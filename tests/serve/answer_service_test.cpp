// What an AnswerService does for clients that leave at a known moment.
#include "../train/small_run.h"
#include "data/media/write_image.h"
#include "infer/generator.h"
#include "serve/answer_service.h"

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace fvlm::serve {
namespace {

constexpr int64_t image_size = 16, patch_size = 8;

// A client that leaves once it was asked `times` whether it has.
class LeavingClient final : public AnswerListener {
 public:
  explicit LeavingClient(int times) : left_(times) {}

  void add_text(int64_t, const std::string&) override {}
  void end_answer(int64_t, const char*, const std::string&) override {}
  void complete(const Usage&) override { end(); }
  void fail(const Error& error) override {
    ADD_FAILURE() << error.text();
    end();
  }
  bool is_abandoned() const override { return left_-- <= 0; }

  void wait() {
    std::unique_lock lock(lock_);
    ended_.wait(lock, [this] { return is_over_; });
  }

 private:
  void end() {
    std::lock_guard lock(lock_);
    is_over_ = true;
    ended_.notify_one();
  }
  mutable std::atomic<int> left_;
  std::mutex lock_;
  std::condition_variable ended_;
  bool is_over_ = false;
};

class Service : public train::SmallRun {
 protected:
  Service() {
    run("run", {}, {.stage = "align"});
    const train::StageFolder align(folder("run") / "align");
    model_ = align.of(align.steps().back());
  }
  std::filesystem::path model_;
};

// Its prompt is written before it leaves, and waits for the model.
TEST_F(Service, ReadsNoPromptOfAClientThatHasLeft) {
  Image image{24, 24, std::vector<uint8_t>(3 * 24 * 24, 90)};
  const Tokenizer tokenizer = Tokenizer::from_file(model_ / "decoder" / "tokenizer.json");
  infer::Generator generator(model_, {}, registry_);
  const PromptWriter writer(tokenizer, {}, {FramePreparation(image_size, {}), 1, "", {}, patch_size});
  AnswerService service(generator, tokenizer, writer, {});
  ChatRequest request;
  request.turns = {{"user", "Which colour?"}};
  request.images = {write_png(image)};
  request.max_tokens = 2;
  for (const bool leaves : {true, false}) {
    const auto client = std::make_shared<LeavingClient>(leaves ? 1 : 1000);
    service.submit(request, client);
    client->wait();
    const ServiceCounts counts = service.counts();
    EXPECT_EQ(counts.abandoned, 1);
    EXPECT_EQ(counts.answered, leaves ? 0 : 1);
    EXPECT_EQ(counts.prompt_tokens > 0, !leaves) << counts.prompt_tokens;
    EXPECT_EQ(counts.answering + counts.waiting, 0);
  }
}

} // namespace
} // namespace fvlm::serve
