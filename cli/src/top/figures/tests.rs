use super::*;

const BEFORE: &str = r#"
tandem_executor_new_payload_seconds_bucket{status="VALID",le="0.002"} 10
tandem_executor_new_payload_seconds_bucket{status="VALID",le="0.004"} 10
tandem_executor_new_payload_seconds_bucket{status="VALID",le="+Inf"} 10
tandem_executor_new_payload_seconds_sum{status="VALID"} 1
tandem_executor_new_payload_seconds_count{status="VALID"} 10
tandem_executor_root_wait_seconds_sum 0.5
tandem_executor_gas_total 1000
tandem_executor_state_reads_total{from="cache"} 50
tandem_process_cpu_milliseconds_total{thread="engine"} 1000
"#;

const AFTER: &str = r#"
tandem_executor_new_payload_seconds_bucket{status="VALID",le="0.002"} 20
tandem_executor_new_payload_seconds_bucket{status="VALID",le="0.004"} 30
tandem_executor_new_payload_seconds_bucket{status="VALID",le="+Inf"} 30
tandem_executor_new_payload_seconds_sum{status="VALID"} 1.08
tandem_executor_new_payload_seconds_count{status="VALID"} 30
tandem_executor_new_payload_seconds_count{status="INVALID"} 4
tandem_executor_root_wait_seconds_sum 0.52
tandem_executor_gas_total 5000
tandem_executor_overlap_reached_ratio_bucket{le="0.8"} 10
tandem_executor_overlap_reached_ratio_bucket{le="0.9"} 20
tandem_executor_overlap_reached_ratio_bucket{le="+Inf"} 20
tandem_executor_overlap_microseconds_total{of="both"} 40000
tandem_executor_overlap_microseconds_total{of="shorter"} 60000
tandem_executor_overlap_verdicts_total{verdict="PARALLEL"} 15
tandem_executor_overlap_verdicts_total{verdict="PARTIAL"} 5
tandem_executor_head_block 137
tandem_executor_state_reads_total{from="cache"} 110
tandem_executor_state_reads_total{from="storage"} 20
tandem_executor_cache_bytes{kind="accounts"} 100
tandem_executor_cache_bytes{kind="slots"} 200
tandem_process_cpu_milliseconds_total{thread="engine"} 4000
tandem_process_cpu_milliseconds_total{thread="proof-worker"} 1000
tandem_process_cpu_milliseconds_total{thread="tokio-rt-worker"} 500
tandem_process_resident_bytes 7e8
tandem_multiproof_workers_alive 3
tandem_multiproof_workers_fleet_workers{state="active"} 2
tandem_multiproof_workers_fleet_workers{state="quarantined"} 1
tandem_multiproof_workers_idle_workers_sum 30
tandem_multiproof_workers_idle_workers_count 10
tandem_multiproof_workers_nodes_hashed_total{when="ahead"} 75
tandem_multiproof_workers_nodes_hashed_total{when="end"} 25
"#;

/// Another process, which was restarted between the two looks.
const OTHER: [&str; 2] = [
    "tandem_process_cpu_milliseconds_total{thread=\"persist\"} 9000\n",
    "tandem_process_cpu_milliseconds_total{thread=\"persist\"} 500\n\
     tandem_storage_writer_base_block 121\ntandem_blob_validator_hits_total 3\n\
     tandem_blob_validator_verifications_total{form=\"cells\"} 1\n",
];

fn sample(at: f64, texts: &[&str]) -> Sample {
    Sample { at, scrapes: texts.iter().map(|text| Some(Scrape::parse(text))).collect() }
}

fn names(is_service: bool) -> Vec<(String, bool)> {
    ["one", "two"].map(|name| (name.to_owned(), is_service)).into()
}

fn close(got: Option<f64>, want: f64) {
    assert!(got.is_some_and(|got| (got - want).abs() < 1e-9), "{got:?}, want {want}");
}

#[test]
fn two_looks_ten_seconds_apart_give_rates_quantiles_and_shares() {
    let (before, after) = (sample(5.0, &[BEFORE, OTHER[0]]), sample(15.0, &[AFTER, OTHER[1]]));
    let figures = Figures::between(&before, &after, &names(false));
    let payloads = &figures.payloads;
    // 20 valid payloads and 4 others. 10 of the valid ones take up to 2 ms, 10 from 2 to 4 ms.
    close(payloads.per_second, 2.4);
    close(payloads.p50_seconds, 0.002);
    close(payloads.p95_seconds, 0.0038);
    close(payloads.tail, 0.25);
    close(payloads.gas_per_second, 400.0);
    // 10 payloads up to 0.8 of the gain, and 10 up to 0.9.
    close(payloads.reached, 0.8);
    assert_eq!(payloads.weight, None);
    close(payloads.saved_seconds, 0.002);
    close(payloads.could_save_seconds, 0.001);
    assert_eq!(payloads.verdicts.values().copied().collect::<Vec<_>>(), [15.0, 5.0]);
    assert_eq!((payloads.head, payloads.base_lag), (Some(137.0), Some(16.0)));

    let reads: Vec<_> = figures.caches.reads.iter().map(|(place, _)| &**place).collect();
    assert_eq!(reads, ["cache", "storage"]);
    close(Some(figures.caches.reads[0].1), 0.75);
    close(figures.caches.blob_hits, 0.75);
    assert_eq!(figures.caches.cache_bytes, Some(300.0));

    let workers = &figures.workers;
    assert_eq!((workers.alive, workers.idle), (Some(3.0), Some(3.0)));
    assert_eq!(workers.uses.values().sum::<f64>(), 3.0);
    close(workers.hashed_ahead, 0.75);
    close(workers.trie_cores, 0.1);
    assert_eq!(workers.reader_cores, None);

    let cpu: Vec<_> = figures.cpu.iter().map(|(service, _)| &**service).collect();
    assert_eq!(cpu[..2], ["executor", "multiproof-workers"]);
    close(Some(figures.cpu[0].1), 0.3);
    let writer = figures.cpu.iter().find(|(service, _)| service == "storage-writer").unwrap();
    close(Some(writer.1), 0.05);
    assert_eq!(figures.processes[0].resident_bytes, Some(7e8));
}

#[test]
fn a_process_with_the_name_of_a_service_counts_as_that_whatever_its_threads() {
    let (before, after) = (sample(0.0, &[BEFORE, OTHER[0]]), sample(10.0, &[AFTER, OTHER[1]]));
    let figures = Figures::between(&before, &after, &names(true));
    let cpu: Vec<_> = figures.cpu.iter().map(|(service, _)| &**service).collect();
    assert_eq!(cpu, ["one", "two"]);
    close(Some(figures.cpu[0].1), 0.45);
}

#[test]
fn who_does_not_answer_is_left_out_and_named() {
    let mut after = sample(10.0, &[AFTER, ""]);
    after.scrapes[1] = None;
    let figures = Figures::between(&sample(0.0, &[BEFORE, ""]), &after, &names(false));
    assert_eq!(figures.processes[1], ProcessFigures { name: "two".into(), ..Default::default() });
    close(figures.payloads.per_second, 2.4);
    assert_eq!(figures.payloads.base_lag, None);
}

#[test]
fn where_nothing_happened_there_are_no_figures() {
    let figures = Figures::between(&sample(0.0, &[AFTER]), &sample(1.0, &[AFTER]), &names(true));
    assert_eq!(figures.payloads.per_second, Some(0.0));
    assert_eq!((figures.payloads.p50_seconds, figures.payloads.tail), (None, None));
    assert_eq!(figures.caches.reads, []);
    let nothing = Figures::between(&Sample::default(), &Sample::default(), &[]);
    assert_eq!(nothing, Figures::default());
}

#[test]
fn a_quantile_beyond_the_last_bound_is_that_bound() {
    let buckets = [(1.0, 1.0), (f64::INFINITY, 10.0)];
    assert_eq!(quantile(&buckets, 0.5), Some(1.0));
    assert_eq!(quantile(&buckets, 0.1), Some(1.0));
    assert_eq!(quantile(&buckets, 0.05), Some(0.5));
    assert_eq!(quantile(&[], 0.5), None);
}

#[test]
fn the_parts_of_a_payload_are_the_whole_of_it() {
    const TRACE: &str =
        include_str!("../../../../tracing/overlap/tests/fixtures/hand_counted.otlp.json");
    let input = tandem_overlap::read("fixture", TRACE.as_bytes());
    let selection = tandem_overlap::Selection::from(tandem_overlap::Preset::Tandem);
    let report = tandem_overlap::analyze(input, &selection, usize::MAX);
    let figures = Figures::default().with_blocks(&report, 10);
    assert_eq!(figures.blocks.len(), report.payloads.len());
    for block in &figures.blocks {
        assert_eq!(block.parts_ns.iter().sum::<u64>(), block.payload_ns);
    }
    let block = &figures.blocks[0];
    let mut payloads = report.payloads.iter();
    let payload = payloads.find(|payload| payload.block_number == block.number).unwrap();
    let [both, a, b, _] = block.parts_ns;
    assert_eq!((both, both + a, both + b), (payload.both_ns, payload.a_ns, payload.b_ns));
    assert!(Figures::default().with_blocks(&report, 0).no_blocks.is_some());
}
