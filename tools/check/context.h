// What the function of a row is given: the plugin, the table under test, the device, an instance, and trials to run.
#pragma once
#include "check/check.h"
#include "check/host.h"
#include "check/subject.h"
#include "check/trial.h"

#include <c10/core/Device.h>

namespace fvlm::check {

class Context {
 public:
  Context(Subject& subject, std::string kind, at::Device device, bool quick = false);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Subject& subject;
  const std::string kind; // "fvlm.attention/1"; "" for the library's own table
  const at::Device device;
  const bool quick; // `--quick`: a row may skip what takes long

  template <class KindTable>
  const KindTable& table() const {
    return *static_cast<const KindTable*>(table_);
  }
  const fvlm_table& base() const { return *static_cast<const fvlm_table*>(table_); }

  // The instance that trials share, created at first use and kept to the end of the process. Throws RowAborted if
  // create() fails.
  fvlm_instance* instance();
  TestHost& host() { return TestHost::with_threads(2); }

  // The family's ordinary shapes in the plugin's first dtype that supports() accepts. Throws RowAborted if there are
  // none.
  const std::vector<Trial>& typical();
  // The same, and shapes whose sizes no vector divides.
  const std::vector<Trial>& small();
  // Shapes with enough rows and heads that a plugin splits them into several pieces; typical() if the family has none.
  const std::vector<Trial>& parallel();

 private:
  const void* table_;
  fvlm_instance* instance_ = nullptr;
  std::vector<Trial> typical_, small_, parallel_;
};

// A plugin's instance that is destroyed at the end of the scope, in place of the one that trials share.
class Instance {
 public:
  Instance(Context& context, TestHost& host);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  fvlm_instance* get() const { return instance_; }

 private:
  Context& context_;
  fvlm_instance* instance_ = nullptr;
};

// Thrown to end a row early; the row's outcome is then this state with this text.
struct RowAborted {
  State state;
  std::string text;
};

} // namespace fvlm::check
