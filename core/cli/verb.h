// The verbs of the command line: name, one-line summary, and the function that runs it.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace fvlm::cli {

using Arguments = std::span<const std::string>;

struct Verb {
  const char* name;
  const char* summary;
  int (*run)(Arguments); // returns the exit code; throws Error
};

// Each verb has a file of its own, here or in its room under tools/. main.cpp lists them for --help. Those of the
// module are in tensor_module.h.
int run_check(Arguments);
int run_completion(Arguments);
int run_plan(Arguments);
int run_recipe(Arguments);
int run_recipe_new(Arguments);
int run_doctor(Arguments);
int run_export(Arguments);
int run_import(Arguments);
int run_plugin(Arguments);
int run_plugin_info(Arguments);
int run_plugin_list(Arguments);
int run_plugin_new(Arguments);
int run_plugin_trust(Arguments);
int run_preprocess(Arguments);
int run_report(Arguments);
int run_tokenize(Arguments);

// Writes report.html into the folder of a run, which may still be training (tools/report).
void write_report_page(const std::filesystem::path& run);

// Serves the page of a run on a thread of its own, as long as the returned object lives (tools/report). `where`:
// [ADDRESS:]PORT. `stop` asks the run to save a checkpoint and stop. Throws Error(usage).
std::shared_ptr<void> open_run_page(const std::filesystem::path& run, const std::string& where,
                                    std::function<void()> stop);

std::span<const Verb> all_verbs();

// Runs a verb of a group such as "plugin list": dispatches on the first argument, or prints the group's help.
int run_group(const char* group, const char* summary, std::span<const Verb> verbs, Arguments arguments);

} // namespace fvlm::cli
