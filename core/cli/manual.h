// The manual page fvlm-engine(1), written from the help of all verbs.
#pragma once
#include <string>

namespace fvlm::cli {

// In troff with the macros of man(7). Loads LibTorch for the verbs that need it.
std::string manual_page();

} // namespace fvlm::cli
