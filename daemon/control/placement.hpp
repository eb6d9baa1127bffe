// Probes on their way in: parsed, planned, registered, given to the tracer, told of.
//
// Asio thread.
#pragma once

#include "daemon/control/part.hpp"

namespace probed::control {

class Placement : public Part {
 public:
  using Part::Part;

  // Requests: controller.hpp says what they do.
  void add(Client& client, AddRequest request, Reply<Added> reply);

  // Enters the planned probes, invisible until the tracer has confirmed them: their hits may arrive before that. An
  // error: none is entered.
  Result<void> register_probes(Plan& plan);
  // Enters the probe as one more place of a probe that is there already.
  void follow(Probe& probe, ProbeId leader);
  // Has the code around new places looked at, and the tracer told, while they are hit as breakpoints.
  void analyse_code(uid_t user, pid_t pid, std::uint32_t execs, std::shared_ptr<const symbols::TargetSymbols> symbols,
                    std::vector<RemoteAddr> sites);

  // Whether the probe's events name addresses by their symbols: some argument does, or it is a return probe.
  static bool shows_symbols(const PlannedProbe& planned);
  // What is to be said of a probe's events at this place.
  static events::EventSchema schema_of(const Probe& probe, const PlannedProbe& planned);
  // For the tracer; what was planned is moved out of.
  static tracer::ProgramPtr program_of(const Probe& probe, PlannedProbe& planned);
  // Reads the symbols of every module there is, so that later look-ups are quick. Worker pool.
  static void read_all_symbols(const symbols::TargetSymbols& symbols);

 private:
  Result<std::vector<lang::Definition>> parse(const AddRequest& request) const;
  Result<void> check_names(const AddRequest& request, ClientId owner,
                           const std::vector<lang::Definition>& definitions) const;
  void plan_in_pool(std::shared_ptr<Plan> plan);
  void analyse_first(std::shared_ptr<Plan> plan);
  void take_analysis(const std::shared_ptr<Plan>& plan, std::vector<tracer::SiteCode> code);
  void refuse(const Plan& plan, Error why);
  Result<void> check_room(const Plan& plan) const;
  void describe(Probe& probe, const Plan& plan, const Target& t, PlannedProbe& planned) const;
  void commit(std::shared_ptr<Plan> plan);
  void tell_code(pid_t pid, std::uint32_t execs, std::vector<tracer::SiteCode> code);
};

}  // namespace probed::control
