//! Scenarios: a network, its traffic and its results, described by one TOML file.
//!
//! [`Scenario`] is the file, [`Simulation`] runs it, [`Results`] has tables of the outcome. `docs/simulator.md`
//! explains the file.
//!
//! ```
//! use roxie_sim::scenario::{Scenario, Simulation};
//!
//! let scenario = Scenario::read(
//!     r#"
//!     time = "1 ms"
//!     [network]
//!     shape = "star"
//!     hosts = 3
//!     [[traffic]]
//!     pattern = "incast"
//!     from = [0, 1]
//!     bytes = "64 KiB"
//!     "#,
//! )?;
//! let mut simulation = Simulation::new(&scenario)?;
//! simulation.run()?;
//! assert_eq!(simulation.results().summary.ended, 2);
//! # Ok::<(), roxie_sim::scenario::ScenarioError>(())
//! ```

mod application;
mod build;
mod capture;
mod error;
mod file;
mod flow_result;
mod ideal;
#[cfg(feature = "parquet")]
mod parquet;
mod quantity;
mod record;
mod results;
mod run;
mod schedule;
mod sizes;
mod table;
mod tables;
mod traffic;

pub use error::{ScenarioError, ScenarioKey};
pub use file::{
    EcnTable, HostTable, NetworkTable, NodeLink, NodesTable, OutputTable, Pattern, PfcTable, Place,
    RoutingName, Scenario, Service, ShapeName, SwitchTable, TrafficTable,
};
pub use flow_result::FlowResult;
pub use quantity::{Bytes, Speed, Time};
pub use record::{ControlSample, RateSample};
pub use results::{Results, Summary};
pub use run::Simulation;
pub use sizes::Sizes;
pub use table::{Column, Table};
pub use traffic::Flow;
