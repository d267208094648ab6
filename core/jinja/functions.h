// The functions that transformers gives to chat templates: range, dict, namespace, raise_exception, strftime_now.
#pragma once
#include "jinja/runtime.h"

#include <memory>
#include <string_view>
#include <vector>

namespace fvlm::jinja {

bool is_function(std::string_view name);

// Namespaces that are made are added to `namespaces`, whose owner breaks their cycles in the end.
Value call_function(Runtime& runtime, std::string_view name, const Arguments& arguments,
                    std::vector<std::shared_ptr<Namespace>>& namespaces);

} // namespace fvlm::jinja
