// See further_places.hpp.
#include "daemon/control/further_places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/control/variable_arguments.hpp"

namespace probed::control {

using Instance = symbols::Site::Instance;

std::string place(const symbols::Site& site) {
  if (site.symbol.empty()) return fmt::format("{:#x}", site.address.value);
  return fmt::format("{}+{:#x} ({:#x})", site.symbol, site.offset, site.address.value);
}

FurtherPlaces::FurtherPlaces(const lang::Definition& definition, const symbols::Site& first)
    : name_(definition.location.text),
      is_return_(definition.kind == lang::Kind::return_probe),
      by_convention_(reads_by_convention(definition.args)),
      only_inlined_(first.instance == Instance::inlined) {
  if (const auto* symbol = std::get_if<lang::SymbolLocation>(&definition.location.where)) name_ = symbol->name;
}

bool FurtherPlaces::has(const symbols::Site& site) const { return site.instance != Instance::own && !only_inlined_; }

bool FurtherPlaces::leaves_out(const symbols::Site& site) {
  if (!has(site)) return false;
  (site.instance == Instance::copy ? copies_ : inlined_) += 1;
  return is_return_ || by_convention_;
}

void FurtherPlaces::failed(const symbols::Site& site, const Error& why) {
  if (++failed_ == 1) failure_ = fmt::format("{}: {}", place(site), why.message);
}

std::vector<std::string> FurtherPlaces::notes() const {
  std::vector<std::string> out;
  if (copies_ + inlined_ == 0) return out;
  const auto counted = [](std::size_t n, const char* what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  std::string which = inlined_ == 0 ? "" : fmt::format("is inlined at {}, too", counted(inlined_, "place"));
  if (copies_ != 0)
    which += fmt::format("{}has {} made for some callers", which.empty() ? "" : " and ",
                         copies_ == 1 ? std::string("a copy") : fmt::format("{} copies", copies_));
  const char* what = is_return_       ? "only returns from its own code are seen"
                     : by_convention_ ? "only its own code is probed, as %REG, $argN and $stackN have no meaning "
                                        "elsewhere; write the arguments' names, or none"
                     : inlined_ == 0  ? "all that is this probe"
                                      : "all that is this probe, whose hits may be more or fewer than its calls, as "
                                        "compilers move and merge inlined code";
  out.push_back(fmt::format("{} {}: {}", name_, which, what));
  if (failed_ > 0) out.push_back(fmt::format("{} of them can't be probed; {}", failed_, failure_));
  return out;
}

LackingPlaces::LackingPlaces(const lang::Definition& definition, std::size_t places)
    : possible_(places > 1 && std::holds_alternative<lang::LineLocation>(definition.location.where) &&
                needs_variables(definition.args, false)) {}

bool LackingPlaces::may_lack(const Error& why) const { return possible_ && why.reason == Reason::bad_definition; }

void LackingPlaces::add(const symbols::Site& site, Error why) {
  if (++count_ > 1) return;
  where_ = place(site);
  first_ = std::move(why);
}

std::string LackingPlaces::note() const {
  if (count_ == 0) return "";
  return fmt::format("{} left out; {}: {}", count_ == 1 ? "a place is" : fmt::format("{} places are", count_), where_,
                     first_->message);
}

void gather_notes(std::span<PlannedProbe> places) {
  std::vector<std::string> all;
  for (const PlannedProbe& p : places)
    for (const std::string& note : p.notes)
      if (std::ranges::find(all, note) == all.end()) all.push_back(note);
  constexpr std::size_t kMostSaid = 12;
  std::vector<std::string> said;
  for (std::string& note : all) {
    if (said.size() == kMostSaid && all.size() > kMostSaid + 1) {
      said.push_back(fmt::format("... and {} more notes of this kind", all.size() - kMostSaid));
      break;
    }
    const auto has_it = [&note](const PlannedProbe& p) { return std::ranges::find(p.notes, note) != p.notes.end(); };
    const auto holders = std::ranges::count_if(places, has_it);
    if (holders != std::ssize(places) && places.front().where.note != note) {
      const PlannedProbe& first = *std::ranges::find_if(places, has_it);
      const std::string more = holders > 1 ? fmt::format(" and {} more", holders - 1) : "";
      note = fmt::format("at {}{}: {}", place(first.where), more, note);
    }
    said.push_back(std::move(note));
  }
  for (PlannedProbe& p : places) p.notes.clear();
  places.front().notes = std::move(said);
}

}  // namespace probed::control
