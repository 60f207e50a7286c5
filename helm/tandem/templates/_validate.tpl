{{/* What a schema cannot say, or not in a sentence. */}}
{{- define "tandem.validate" -}}
{{- $services := .Values.services -}}
{{- $writers := int (index $services "storage-writer").replicas }}
{{- if and (gt $writers 1) (index $services "storage-writer").persistence.existingClaim }}
{{- fail (printf "services.storage-writer.persistence.existingClaim is %s, but services.storage-writer.replicas is %d: each needs a claim of its own" (index $services "storage-writer").persistence.existingClaim $writers) }}
{{- end }}
{{- range $name := list "peer-table" "discovery" "peer-sessions" }}
{{- if gt (int (index $services $name).replicas) 1 }}
{{- fail (printf "services.%s.replicas is %d: one is all there can be, as each would be a node of its own" $name (int (index $services $name).replicas)) }}
{{- end }}
{{- end }}
{{- if gt (int (index $services "tx-pool").replicas) 1 }}
{{- fail (printf "services.tx-pool.replicas is %d: there is one tx-pool, as all executors build blocks from the same transactions" (int (index $services "tx-pool").replicas)) }}
{{- end }}
{{- if gt (int (index $services "multiproof-workers").replicas) 16 }}
{{- fail (printf "services.multiproof-workers.replicas is %d: the state has 16 shards, and a seventeenth worker would have none" (int (index $services "multiproof-workers").replicas)) }}
{{- end }}
{{- $machines := index $services "tx-executor" }}
{{- $most := ternary (int $machines.autoscaling.maxReplicas) (int $machines.replicas) $machines.autoscaling.enabled }}
{{- if and $machines.enabled (gt $most 16) }}
{{- fail (printf "services.tx-executor has up to %d pods: an executor uses 16 addresses of a name" $most) }}
{{- end }}
{{- $follower := $services.follower }}
{{- $followers := ternary (int $follower.autoscaling.maxReplicas) (int $follower.replicas) $follower.autoscaling.enabled }}
{{- $places := int (dig "storage_writer" "feed_readers_max" 16 .Values.config) }}
{{- $readers := add (ternary $followers 0 $follower.enabled) (max 0 (sub $writers 1)) | int }}
{{- if gt $readers $places }}
{{- fail (printf "services.follower and services.storage-writer have up to %d pods that follow, and the storage-writer that leads has places for %d: raise config.storage_writer.feed_readers_max too" $readers $places) }}
{{- end }}
{{- range $name := list "multiproof-workers" "blob-validator" "tx-executor" "follower" }}
{{- $autoscaling := (index $services $name).autoscaling }}
{{- if $autoscaling.enabled }}
{{- if gt (int $autoscaling.minReplicas) (int $autoscaling.maxReplicas) }}
{{- fail (printf "services.%s.autoscaling.minReplicas is %d, which is more than maxReplicas, %d" $name (int $autoscaling.minReplicas) (int $autoscaling.maxReplicas)) }}
{{- end }}
{{- if and (eq $name "multiproof-workers") (gt (int $autoscaling.maxReplicas) 16) }}
{{- fail (printf "services.multiproof-workers.autoscaling.maxReplicas is %d: the state has 16 shards, and a seventeenth worker would have none" (int $autoscaling.maxReplicas)) }}
{{- end }}
{{- if not (or $autoscaling.cpuPercent $autoscaling.podMetrics) }}
{{- fail (printf "services.%s.autoscaling has neither cpuPercent nor podMetrics: there is nothing to scale by" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $services.discovery.enabled (not (index $services "peer-table").enabled) }}
{{- fail "services.peer-table.enabled is false, but services.discovery.enabled is true: discovery keeps what it finds in peer-table" }}
{{- end }}
{{- if and (index $services "peer-sessions").enabled (not (index $services "peer-table").enabled) }}
{{- fail "services.peer-table.enabled is false, but services.peer-sessions.enabled is true: peer-sessions gets candidates from peer-table, and tells it of sessions" }}
{{- end }}
{{- if and (include "tandem.meetsPeers" .) (eq $services.discovery.expose.type "NodePort") (not $services.discovery.expose.nodePort) }}
{{- fail "services.discovery.expose.nodePort is not set, but expose.type is NodePort: the port is announced to other nodes, so it must be known" }}
{{- end }}
{{- $genesis := .Values.genesis }}
{{- if and (eq $genesis.source "configMap") (not $genesis.configMap.name) }}
{{- fail "genesis.configMap.name is empty, but genesis.source is configMap" }}
{{- end }}
{{- if and (eq $genesis.source "url") (not (and $genesis.url.address $genesis.url.sha256)) }}
{{- fail "genesis.url.address and genesis.url.sha256 are both needed, as genesis.source is url" }}
{{- end }}
{{- if and (eq $genesis.source "claim") (not (and $genesis.claim.name $genesis.claim.path)) }}
{{- fail "genesis.claim.name and genesis.claim.path are both needed, as genesis.source is claim" }}
{{- end }}
{{- if and (not .Values.nats.enabled) (not .Values.nats.url) }}
{{- fail "nats.url is empty, but nats.enabled is false: executors hear of workers over NATS" }}
{{- end }}
{{- if and .Values.nats.enabled .Values.nats.url }}
{{- fail (printf "nats.url is %s, but nats.enabled is true: there would be two" .Values.nats.url) }}
{{- end }}
{{- if include "tandem.severalNats" . }}
{{- if not .Values.tls.enabled }}
{{- fail (printf "tls.enabled is false, but nats.replicas is %d: the servers of NATS know each other by their certificates" (int .Values.nats.replicas)) }}
{{- end }}
{{- if .Values.nats.persistence.existingClaim }}
{{- fail (printf "nats.persistence.existingClaim is %s, but nats.replicas is %d: each server needs a claim of its own" .Values.nats.persistence.existingClaim (int .Values.nats.replicas)) }}
{{- end }}
{{- end }}
{{- if .Values.nats.enabled }}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-nats" (include "tandem.fullname" .)) }}
{{- $servers := dig "spec" "replicas" 0 $set | int }}
{{- if and $servers (ne $servers (int .Values.nats.replicas)) (gt $writers 0) (or (gt $writers 1) (hasKey (dig "storage_writer" "lead" dict .Values.config) "lease_ms")) }}
{{- fail (printf "nats.replicas is %d, but NATS has %d servers now, and the lease of storage-writer would be lost: upgrade once with services.storage-writer.replicas=0 as well, then set those back" (int .Values.nats.replicas) $servers) }}
{{- end }}
{{- end }}
{{- if and .Values.nats.auth.enabled (not .Values.nats.enabled) (not .Values.nats.auth.existingSecret) }}
{{- fail "nats.auth.existingSecret is empty: only you know the passwords of a NATS that is not the chart's (or set nats.auth.enabled to false)" }}
{{- end }}
{{- if and .Values.nats.enabled (not .Values.nats.auth.enabled) }}
{{- fail "nats.auth.enabled is false, but nats.enabled is true: the chart's NATS wants a password of every client" }}
{{- end }}
{{- if and .Values.jaeger.enabled .Values.tracing.endpoint }}
{{- fail (printf "tracing.endpoint is %s, but jaeger.enabled is true: traces go to one place" .Values.tracing.endpoint) }}
{{- end }}
{{- if .Values.tls.enabled }}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerName) }}
{{- fail "tls.certManager.issuerName is empty: who is to sign the certificates?" }}
{{- end }}
{{- if eq (include "tandem.certificatesFrom" .) "secrets" }}
{{- range $name := splitList "," (include "tandem.certified" .) }}
{{- if not (index $.Values.tls.secrets $name) }}
{{- fail (printf "tls.secrets.%s is empty, but tls.secrets names others: with secrets of yours each service needs one with ca.crt, tls.crt and tls.key (or name none, and the chart makes all of them)" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- if ge (int .Values.tls.generated.renewBeforeDays) (int .Values.tls.generated.days) }}
{{- fail (printf "tls.generated.renewBeforeDays is %d, which is not less than tls.generated.days, %d: certificates would be made anew by each upgrade" (int .Values.tls.generated.renewBeforeDays) (int .Values.tls.generated.days)) }}
{{- end }}
{{- end }}
{{- $ingress := $services.executor.ingress }}
{{- if and $ingress.enabled (not $ingress.hosts) }}
{{- fail "services.executor.ingress.hosts is empty, but services.executor.ingress.enabled is true: JSON-RPC answers to names that it knows" }}
{{- end }}
{{- if and $ingress.enabled .Values.networkPolicies.enabled (not .Values.networkPolicies.httpFrom) }}
{{- fail "networkPolicies.httpFrom is empty, but services.executor.ingress.enabled is true: name the pods of the ingress controller, which could not reach JSON-RPC otherwise" }}
{{- end }}
{{- if and .Values.tracing.headersSecret.name .Values.jaeger.enabled }}
{{- fail (printf "tracing.headersSecret.name is %s, but jaeger.enabled is true: headers are for tracing.endpoint" .Values.tracing.headersSecret.name) }}
{{- end }}
{{- $have := include "tandem.genesisInUse" . }}
{{- $want := include "tandem.genesisIdentity" . }}
{{- if and $have $want (ne $have $want) (not $genesis.acceptAnother) }}
{{- fail (printf "genesis.source is %s (%s), but the volume claim %s holds the chain of: %s. Pass the values of the release again (--reset-then-reuse-values, or all files). For another chain delete that claim first; where both are the same genesis set genesis.acceptAnother" $genesis.source $want (include "tandem.chainClaim" .) $have) }}
{{- end }}
{{- end -}}
