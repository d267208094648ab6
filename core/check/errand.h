// Another process of this program that opens the plugin, does one thing with it and ends: what a plugin makes of
// another time, environment and address space, and of a process that ends.
#pragma once
#include "check/context.h"

namespace fvlm::check {

// What the plugin's results on the ordinary trials of a kind are, as text. Backwards: the last trial first.
std::string digest(Context& context, bool backwards);

// The digest of a process that was started in another folder, with another environment and a random order of addresses.
// Throws Refused where that process did not come to one.
std::string digest_elsewhere(Context& context);

// "" where a process that used the plugin ends by exit(0) as every other does, else what happened.
std::string trouble_at_exit(Context& context);

// In that process: does what the text asks for and ends.
[[noreturn]] void do_errand(const std::string& errand, Subject& subject, const std::string& device);

} // namespace fvlm::check
