// The sub-commands that act on probes named by the user: remove, enable, disable, format. What a name stands for is
// looked up here: the protocol takes a name that nothing has for a probe already gone, people may have mistyped it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/connection.hpp"
#include "client/probectl/options.hpp"

namespace probed::client {

// A decimal number as the daemon writes ids.
bool is_id(std::string_view text);
// Whether NAME, GROUP/NAME or an id is this probe's.
bool names_probe(std::string_view which, JsonView probe);

// The ids of the probes that `which` names in an array of probes, as texts, each once; and what names none.
struct Selection {
  std::vector<std::string> ids;
  std::vector<std::string> unknown_names, unknown_ids;
  std::string similar;  // some probes whose names contain an unknown one: "probes/p_f_0 (id 3), ..."
};
Selection select_probes(JsonView probes, const std::vector<std::string>& which);

// Errors: no_such_probe, names the unknown ones; nothing when there are none.
std::optional<Error> unknown_names_error(const Selection& selection, const Options& options);

// Runs the sub-command; nullopt: it is another one. Returns the exit status.
std::optional<int> run_selection(Connection& connection, const Options& options);

}  // namespace probed::client
