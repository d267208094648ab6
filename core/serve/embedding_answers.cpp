#include "serve/embedding_answers.h"

#include "base/base64.h"
#include "serve/api_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace fvlm::serve {
namespace {

// The first `dimensions` numbers, with length 1 unless the request wants them as the model has them.
std::vector<float> in_form(std::vector<float> vector, const EmbeddingForm& form) {
  if (form.dimensions > 0) vector.resize(static_cast<size_t>(form.dimensions));
  if (!form.normalize) return vector;
  double square = 0;
  for (const float each : vector) square += static_cast<double>(each) * each;
  const double length = std::max(std::sqrt(square), 1e-12);
  for (float& each : vector) each = static_cast<float>(each / length);
  return vector;
}

std::string json_of(const std::vector<float>& vector, bool is_base64) {
  if (!is_base64) return fmt::format("[{}]", fmt::join(vector, ","));
  const auto bytes = std::as_bytes(std::span(vector)); // little-endian, as all machines here are
  return fmt::format("\"{}\"", encode_base64({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
}

} // namespace

EmbeddingAnswers::EmbeddingAnswers(std::vector<ChatRequest> inputs, std::shared_ptr<HttpResponse> response,
                                   Submit submit)
    : model_(inputs.front().model), form_(*inputs.front().embedding), response_(std::move(response)),
      submit_(std::move(submit)), vectors_(inputs.size()), inputs_(std::move(inputs)) {}

void EmbeddingAnswers::begin(size_t most) {
  std::lock_guard lock(lock_);
  most_ = most;
  if (!submit(std::min(most, inputs_.size()))) refuse();
}

// The next inputs, all or none.
bool EmbeddingAnswers::submit(size_t count) {
  Requests requests;
  for (size_t input = submitted_; input < submitted_ + count; ++input) {
    const bool is_first = submitted_ == 0; // none of these is submitted twice
    requests.emplace_back(is_first ? std::move(inputs_[input]) : inputs_[input],
                          std::make_shared<InputEmbedding>(shared_from_this(), input));
  }
  if (!submit_(std::move(requests))) return false;
  submitted_ += count;
  return true;
}

void EmbeddingAnswers::refuse() {
  failed_ = true;
  refuse_for_now(*response_);
}

void EmbeddingAnswers::add(size_t input, const std::vector<float>& hidden) {
  std::lock_guard lock(lock_);
  vectors_[input] = in_form(hidden, form_);
}

void EmbeddingAnswers::complete(const Usage& usage) {
  std::lock_guard lock(lock_);
  tokens_ += usage.prompt;
  ++completed_;
  if (is_abandoned()) return;
  if (completed_ == inputs_.size()) return response_->send(200, json_type, whole());
  // Another client may have taken the place of the one that has ended: then they follow the next one that ends.
  while (submitted_ < inputs_.size() && submitted_ - completed_ < most_)
    if (!submit(1)) break;
  if (submitted_ == completed_) refuse();
}

void EmbeddingAnswers::fail(const Error& error) {
  std::lock_guard lock(lock_);
  if (!failed_.exchange(true)) response_->send(http_status_of(error), json_type, error_json(error));
}

std::string EmbeddingAnswers::whole() const {
  std::string data;
  for (size_t i = 0; i < vectors_.size(); ++i)
    data += fmt::format("{}{{\"object\":\"embedding\",\"index\":{},\"embedding\":{}}}", i == 0 ? "" : ",", i,
                        json_of(vectors_[i], form_.is_base64));
  const nlohmann::json usage{{"prompt_tokens", tokens_}, {"total_tokens", tokens_}};
  return fmt::format("{{\"object\":\"list\",\"data\":[{}],\"model\":{},\"usage\":{}}}", data,
                     dumped(nlohmann::json(model_)), dumped(usage));
}

} // namespace fvlm::serve
