// The answer to a request of /v1/embeddings: a vector for each of its inputs.
#pragma once
#include "http/http_server.h"
#include "serve/answer_job.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fvlm::serve {

// Sends the vectors of all inputs of one request, when the last one is there. [any thread]
class EmbeddingAnswers {
 public:
  EmbeddingAnswers(const std::vector<ChatRequest>& inputs, std::shared_ptr<HttpResponse> response);

  void add(size_t input, const std::vector<float>& hidden);
  void complete(const Usage& usage);
  // Of the first input that fails; the vectors of the others are dropped.
  void fail(const Error& error);
  bool is_abandoned() const { return failed_ || response_->is_abandoned(); }

 private:
  std::string whole() const;

  const std::string model_;
  const EmbeddingForm form_;
  std::shared_ptr<HttpResponse> response_;
  std::mutex lock_; // of what follows
  std::vector<std::vector<float>> vectors_;
  int64_t tokens_ = 0;
  size_t open_; // inputs without a vector
  std::atomic<bool> failed_ = false;
};

// The vector of one of the inputs.
class InputEmbedding final : public AnswerListener {
 public:
  InputEmbedding(std::shared_ptr<EmbeddingAnswers> to, size_t input) : to_(std::move(to)), input_(input) {}

  void add_embedding(const std::vector<float>& hidden) override { to_->add(input_, hidden); }
  void add_text(int64_t, const std::string&) override {}
  void end_answer(int64_t, const char*) override {}
  void complete(const Usage& usage) override { to_->complete(usage); }
  void fail(const Error& error) override { to_->fail(error); }
  bool is_abandoned() const override { return to_->is_abandoned(); }

 private:
  std::shared_ptr<EmbeddingAnswers> to_;
  size_t input_;
};

} // namespace fvlm::serve
