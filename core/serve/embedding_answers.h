// The answer to a request of /v1/embeddings: a vector for each of its inputs.
#pragma once
#include "http/http_server.h"
#include "serve/answer_job.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace fvlm::serve {

// Sends the vectors of all inputs of one request, when the last one is there. A few inputs wait at a time: others
// follow as vectors come. [any thread]
class EmbeddingAnswers : public std::enable_shared_from_this<EmbeddingAnswers> {
 public:
  using Requests = std::vector<std::pair<ChatRequest, std::shared_ptr<AnswerListener>>>;
  using Submit = std::function<bool(Requests)>; // false: too many wait
  EmbeddingAnswers(std::vector<ChatRequest> inputs, std::shared_ptr<HttpResponse> response, Submit submit);

  // Submits the first inputs, `most` of them at a time from now on.
  void begin(size_t most);
  void add(size_t input, const std::vector<float>& hidden);
  void complete(const Usage& usage);
  // Of the first input that fails; the vectors of the others are dropped.
  void fail(const Error& error);
  void release_files() { response_->release_body(); }
  bool is_abandoned() const { return failed_ || response_->is_abandoned(); }

 private:
  bool submit(size_t count);
  void refuse();
  std::string whole() const;

  const std::string model_;
  const EmbeddingForm form_;
  std::shared_ptr<HttpResponse> response_;
  const Submit submit_;
  std::mutex lock_; // of what follows
  std::vector<std::vector<float>> vectors_;
  int64_t tokens_ = 0;
  std::vector<ChatRequest> inputs_;
  size_t submitted_ = 0, completed_ = 0, most_ = 1; // of the inputs; the most that wait at a time
  std::atomic<bool> failed_ = false;
};

// The vector of one of the inputs.
class InputEmbedding final : public AnswerListener {
 public:
  InputEmbedding(std::shared_ptr<EmbeddingAnswers> to, size_t input) : to_(std::move(to)), input_(input) {}

  void add_embedding(const std::vector<float>& hidden) override { to_->add(input_, hidden); }
  void add_text(int64_t, const std::string&) override {}
  void end_answer(int64_t, const char*, const std::string&) override {}
  void complete(const Usage& usage) override { to_->complete(usage); }
  void fail(const Error& error) override { to_->fail(error); }
  void release_files() override { to_->release_files(); }
  bool is_abandoned() const override { return to_->is_abandoned(); }

 private:
  std::shared_ptr<EmbeddingAnswers> to_;
  size_t input_;
};

} // namespace fvlm::serve
