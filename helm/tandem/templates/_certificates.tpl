{{/*
Certificates that the chart makes itself. They are made once, and kept as the other secrets are: what the
cluster has stays, until it is due.
*/}}

{{/* The domain of a role's DNS name: Helm's functions put DNS names into certificates, and no URIs. */}}
{{- define "tandem.roleDomain" -}}role.tandem.internal{{- end -}}

{{/*
The day on which the certificate of NAME was made, as the cluster has it; nothing where it is to be made
now: it is not there, it is due, `tls.generated.renew` is another text than at that time, or NATS has more servers.
(dict "root" $ "name" NAME)
*/}}
{{- define "tandem.certificateKept" -}}
{{- $secret := lookup "v1" "Secret" .root.Release.Namespace (include "tandem.tlsSecret" .) -}}
{{- $annotations := dig "metadata" "annotations" (dict) $secret | default dict -}}
{{- $generated := .root.Values.tls.generated -}}
{{- $due := int64 (get $annotations "tandem/certificate-due" | default "0") -}}
{{- $same := eq (get $annotations "tandem/certificate-renew") (toString $generated.renew) -}}
{{- if and $same (eq .name "nats") -}}
{{- $same = ge (get $annotations "tandem/certificate-servers" | default "1" | int) (int .root.Values.nats.replicas) -}}
{{- end -}}
{{- if and $same (gt $due (now | unixEpoch | int64)) (dig "data" "tls.key" "" $secret) -}}
{{- get $annotations "tandem/certificate-made" -}}
{{- end -}}
{{- end -}}

{{/*
What changes with the certificate of NAME: the day on which it was made, and `tls.generated.renew`. Nothing
where the chart makes none. (dict "root" $ "name" NAME)
*/}}
{{- define "tandem.certificateMade" -}}
{{- if eq (include "tandem.certificatesFrom" .root) "generated" -}}
{{- $kept := include "tandem.certificateKept" . -}}
{{- default (now | date "2006-01-02") $kept }}{{ with .root.Values.tls.generated.renew }} {{ . }}{{ end -}}
{{- end -}}
{{- end -}}
