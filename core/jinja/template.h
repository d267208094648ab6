// Template: a chat template, parsed once and rendered for many conversations.
#pragma once
#include "jinja/runtime.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fvlm::jinja {

// What a template sees, by name: messages, tools, add_generation_prompt, bos_token.
using Variables = std::vector<std::pair<std::string, Value>>;

struct Rendered {
  std::string text;
  // Where {% generation %} blocks wrote: begin and end in bytes of the text.
  std::vector<std::pair<size_t, size_t>> generations;
};

struct Tree;

class Template {
 public:
  // Throws Error(data) at "where:line" for a mistake of syntax and for what is not supported.
  Template(std::string_view source, std::string where);

  // Throws Error(data) at "where:line", also where the template itself refuses the values or exceeds the limits. `now`
  // is what strftime_now formats. [any thread]
  Rendered render(const Variables& variables, const std::tm& now, const Limits& limits = {}) const;

  // Whether it marks what the assistant says by {% generation %}.
  bool has_generation() const;

 private:
  std::string where_;
  std::shared_ptr<const Tree> tree_;
};

} // namespace fvlm::jinja
