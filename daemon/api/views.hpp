// The controller's values as the protocol shows them: JSON text, keys in a fixed order, as proto/methods.cpp lists
// them.
//
// Thread: any; pure.
#pragma once

#include <string>
#include <vector>

#include "daemon/control/controller.hpp"

namespace probed::api {

std::string target_json(const control::TargetView& target);
std::string targets_json(const std::vector<control::TargetView>& targets);
std::string probes_json(const std::vector<control::ProbeView>& probes);  // {"probes":[…]}, whole views
std::string changed_json(const control::Changed& changed);
std::string armed_json(bool armed, const std::vector<control::Failed>& failed);
std::string added_json(const control::Added& added);                      // {"probes":[…],"skipped":[…]}
std::string profile_json(const std::vector<control::ProbeView>& probes);  // {"probes":[…]}, counters
std::string format_json(const control::ProbeView& probe);
std::string status_json(const control::Status& status);
// At most `limit` of them (0: all); says whether there were more.
std::string functions_json(const std::vector<symbols::Function>& functions, std::size_t limit);
std::string variables_json(const std::vector<dwarf::VisibleVariable>& variables);
std::string lines_json(const std::vector<symbols::SourceLine>& lines, std::size_t limit);
std::string usdt_json(const std::vector<symbols::UsdtProbe>& probes, std::size_t limit);

}  // namespace probed::api
