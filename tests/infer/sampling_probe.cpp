// sampling_probe: reads a line of JSON for each case from standard input, with `logits`, `context` and the settings of
// sampling, and prints the tokens that can be drawn and their probabilities as a line of JSON.
#include "infer/sampling.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>

int main() {
  using namespace fvlm::infer;
  for (std::string line; std::getline(std::cin, line);) {
    const auto given = nlohmann::json::parse(line);
    Sampling sampling;
    sampling.temperature = given.value("temperature", 1.0);
    sampling.top_k = given.value("top_k", int64_t{0});
    sampling.top_p = given.value("top_p", 1.0);
    sampling.min_p = given.value("min_p", 0.0);
    sampling.repetition_penalty = given.value("repetition_penalty", 1.0);
    sampling.frequency_penalty = given.value("frequency_penalty", 0.0);
    sampling.presence_penalty = given.value("presence_penalty", 0.0);
    for (const auto& one : given.value("logit_bias", nlohmann::json::array()))
      sampling.logit_bias.emplace_back(one[0], one[1]);
    const at::Tensor logits = at::tensor(given.at("logits").get<std::vector<double>>(), at::kDouble);
    const auto context = given.at("context").get<std::vector<int64_t>>();
    const TokenDistribution drawn = Sampler(sampling).distribution(logits, context, given.at("answered"));
    fmt::print("{}\n", nlohmann::json{{"tokens", drawn.tokens}, {"probabilities", drawn.probabilities}}.dump());
  }
}
