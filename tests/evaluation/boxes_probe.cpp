// Prints iou and box_accuracy of each line of standard input, {"answer", "expected"}, for boxes_test.py.
#include "evaluation/boxes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>
#include <string>

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto asked = nlohmann::json::parse(line);
    const std::string answer = asked.at("answer");
    const fvlm::evaluation::Answers expected = asked.at("expected");
    fmt::print("{} {}\n", fvlm::evaluation::iou(answer, expected), fvlm::evaluation::box_accuracy(answer, expected));
  }
}
