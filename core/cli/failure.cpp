#include "cli/failure.h"

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "cli/options.h"
#include "cli/plugin_options.h"
#include "recipe/schema/mistakes.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace fvlm::cli {
namespace {

Error error_of(const std::filesystem::filesystem_error& failed) {
  const int code = failed.code().value();
  const bool cannot_write = code == ENOSPC || code == EDQUOT || code == EROFS;
  return Error(cannot_write ? ErrorKind::output : ErrorKind::data, failed.code().message()).at(failed.path1().string());
}

Json mistakes_json(const recipe::RecipeError& error) {
  Json mistakes = Json::array();
  for (const auto& mistake : error.mistakes())
    mistakes.push_back({{"file", mistake.origin.file},
                        {"line", mistake.origin.line},
                        {"path", mistake.path},
                        {"what", mistake.what},
                        {"advice", mistake.advice}});
  return mistakes;
}

int report_error(const Error& error) {
  log_error("{}", error.text());
  if (!json_requested()) return error.exit_code();
  Json document = {{"ok", false},
                   {"error",
                    {{"kind", kind_name(error.kind())},
                     {"code", error.exit_code()},
                     {"what", error.what()},
                     {"where", error.where()},
                     {"advice", error.advice()}}}};
  if (const auto* of_recipe = dynamic_cast<const recipe::RecipeError*>(&error)) {
    document["mistakes"] = mistakes_json(*of_recipe);
    if (of_recipe->more() > 0) document["more"] = of_recipe->more(); // mistakes that are not listed
  }
  fmt::print("{}", dump(document));
  std::fflush(stdout);
  return error.exit_code();
}

} // namespace

int report_failure() {
  try {
    throw;
  } catch (const Interrupted& interrupted) {
    return end_process_by_signal(interrupted);
  } catch (const Error& error) {
    return report_error(error);
  } catch (const std::filesystem::filesystem_error& error) {
    return report_error(error_of(error));
  } catch (const std::exception& error) {
    if (const auto* system = dynamic_cast<const std::system_error*>(&error); system && std::ferror(stdout)) {
      log_error("standard output: {}", system->code().message()); // so a JSON document cannot be written either
      return static_cast<int>(ErrorKind::output);
    }
    return report_error(Error(ErrorKind::internal, "a defect in fvlm-engine: {}", error.what()));
  }
}

} // namespace fvlm::cli
